-- Two counters, of the present and the previous stretch of time; the previous one counts by the
-- part of it that a period ending now still covers.
--
-- Included. State STRING of three doubles: number of the present stretch, from 1970 on; how many were
-- taken in the previous one, and in the present one
-- Words 1 count   2 length, ms
--
-- count * length is below 2^53, so that nothing is rounded.

local sliding_counter = {words = 2}
kinds.sliding_counter = sliding_counter

function sliding_counter.read(key, count, length)
  length = tonumber(length)
  local stretch, previous, present = math.floor(now / length), 0, 0
  local value, old, earlier, later = redis.call('GET', key), -1, 0, 0
  if value then
    old, earlier, later = struct.unpack('<ddd', value)
  end
  if old >= stretch then
    stretch, previous, present = old, earlier, later
  elseif old == stretch - 1 then
    previous = later
  end
  local passed = math.max(0, now - stretch * length)
  return {
    length = length, stretch = stretch,
    room = count - present - math.ceil(previous * (length - passed) / length),
    previous = previous, present = present, open = old == stretch
  }
end

-- Stretch by stretch: requests ahead take the room of each before its end. Their number only grows
-- within a call, so the next wait begins where this one ended.
function sliding_counter.wait(state, n, ahead)
  local length, count, came_to = state.length, state.count, state.came_to or {
    stretch = state.stretch, previous = state.previous, present = state.present, gone = 0
  }
  local stretch, previous, present = came_to.stretch, came_to.previous, came_to.present
  local before = came_to.gone
  ahead = ahead - before
  local fit = math.max(0, count - present - math.min(1, previous))
  while ahead + n > fit do
    local gone = math.min(ahead, fit)
    previous, present, stretch = present + gone, 0, stretch + 1
    ahead, before = ahead - gone, before + gone
    fit = count - math.min(1, previous)
  end
  state.came_to = {stretch = stretch, previous = previous, present = present, gone = before}
  local passed = 0
  if previous > 0 then
    passed = length - math.floor((count - present - ahead - n) * length / previous)
  end
  return math.max(0, stretch * length + math.max(0, passed) - now)
end

local function keep_stretches(state)
  local value = struct.pack('<ddd', state.stretch, state.previous, state.present)
  redis.call('SET', state.key, value, 'PXAT', (state.stretch + 2) * state.length)
  state.open = true
end

function sliding_counter.take(state, n)
  state.present, state.room, state.came_to = state.present + n, state.room - n, nil
  keep_stretches(state)
end

function sliding_counter.whole(state)
  if state.present > 0 then
    return (state.stretch + 2) * state.length - now
  end
  return state.previous > 0 and (state.stretch + 1) * state.length - now or 0
end

function sliding_counter.back(state, n, _, at)
  local stretch = math.floor(at / 1000 / state.length)
  if state.open and stretch == state.stretch and state.present >= n then
    state.present = state.present - n
  elseif stretch == state.stretch - 1 and state.previous >= n then
    state.previous = state.previous - n
  else
    return 0
  end
  keep_stretches(state)
  return n
end
