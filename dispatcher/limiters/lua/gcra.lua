-- Spacing with a burst: a level that leaks, and that each permit raises.
--
-- Included. State STRING of three doubles: the level, the time at which it was so, µs, and when the
--       key expires, ms, which the version before reads
-- Words 1 most that is given at once   2 by how much a permit raises the level
--       3 by how much the level falls each µs
--
-- The level is the time by which permits run ahead of their spacing, in a unit in which both
-- numbers are whole. The highest level is below 2^53, so that nothing is rounded.

local gcra = {words = 3}
kinds.gcra = gcra

function gcra.read(key, count, rise, fall)
  rise, fall = tonumber(rise), tonumber(fall)
  local level, value = 0, redis.call('GET', key)
  if value then
    local stored, at_us = struct.unpack('<dd', value)
    level = math.max(0, stored - (now_us - at_us) * fall)
  end
  local room = math.floor((count * rise - level) / rise)
  return {room = room, rise = rise, fall = fall, level = level}
end

local function ms_to_fall(state, by)
  return math.ceil(by / (state.fall * 1000))
end

local function store(state)
  local life = ms_to_fall(state, state.level) + 1
  local value = struct.pack('<ddd', state.level, now_us, now + life)
  redis.call('SET', state.key, value, 'PX', life)
end

function gcra.wait(state, n, ahead)
  return ms_to_fall(state, math.max(0, state.level + (ahead + n - state.count) * state.rise))
end

function gcra.take(state, n)
  state.level, state.room = state.level + n * state.rise, state.room - n
  store(state)
end

-- Counted from the whole millisecond.
function gcra.whole(state)
  return state.level > 0 and ms_to_fall(state, state.level + now_us % 1000 * state.fall) or 0
end

-- The level that has leaked since the permits were taken may have been theirs.
function gcra.back(state, n, _, at)
  local left = math.min(state.level, n * state.rise - (now_us - at) * state.fall)
  if left <= 0 then
    return 0
  end
  state.level = state.level - left
  store(state)
  return n
end
