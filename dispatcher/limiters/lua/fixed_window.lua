-- A count that begins anew: with the first permit after its end, or with the calendar.
--
-- Included. State STRING of two doubles: how many were taken, and the end of the window, ms
-- Words 1 count   2 length, ms
--       or 2 five bounds or more of consecutive windows, ms, as doubles: the present one is among the
--       first four, and further ones give the turns of refused requests
--
-- The state has the end, so that it is exact to the millisecond; the expiry only tidies up.

local fixed_window = {}
kinds.fixed_window = fixed_window
local bounds = '<ddddd'
local length_of_bounds = struct.size(bounds)

-- Where the window of the present begins and ends; nothing when it is not among the first four.
local function window(packed)
  local first, second, third, fourth, fifth = struct.unpack(bounds, packed)
  if now < first or now >= fifth then
    return
  elseif now < second then
    return first, second
  elseif now < third then
    return second, third
  elseif now < fourth then
    return third, fourth
  end
  return fourth, fifth
end

-- The bound that lies so many windows after the end of the present one.
local function further_bound(state, further)
  local packed, many = state.bounds, #state.bounds / 8
  if not state.ends_at then
    local at = 1
    while at < many and struct.unpack('<d', packed, 8 * at - 7) < state.ends do
      at = at + 1
    end
    state.ends_at = at
  end
  local at = math.min(state.ends_at + further, many)
  local bound = struct.unpack('<d', packed, 8 * at - 7)
  return bound
end

function fixed_window.read(index, at)
  local count, word, length, begins, ends = tonumber(ARGV[at]), ARGV[at + 1], nil, nil, nil
  if #word >= length_of_bounds then
    begins, ends = window(word)
    if not ends then
      return nil
    end
  else
    length = tonumber(word)
    ends = now + length
  end
  local value, taken, old_end = redis.call('GET', KEYS[index]), 0, 0
  if value then
    taken, old_end = struct.unpack('<dd', value)
  end
  local open = old_end > now
  return {
    kind = fixed_window, index = index, count = count,
    room = open and count - taken or count, ends = open and old_end or ends,
    open = open, length = length, begins = begins, bounds = word
  }, at + 2
end

function fixed_window.wait(state, n, ahead)
  local further = math.ceil((ahead + n) / state.count) - 1
  if state.length then
    return state.ends - now + further * state.length
  end
  return (further == 0 and state.ends or further_bound(state, further)) - now
end

function fixed_window.take(state, n)
  state.room = state.room - n
  local key, value = KEYS[state.index], struct.pack('<dd', state.count - state.room, state.ends)
  if state.open then
    redis.call('SET', key, value, 'KEEPTTL')
  else
    redis.call('SET', key, value)
    redis.call('PEXPIREAT', key, state.ends)
    state.open = true
  end
end

function fixed_window.whole(state)
  return state.open and state.ends - now or 0
end

function fixed_window.back(state, n, _, at)
  local opened = state.begins or state.ends - state.length
  if not state.open or at / 1000 < opened or state.room + n > state.count then
    return 0
  end
  fixed_window.take(state, -n)
  return n
end
