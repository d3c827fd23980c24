-- A count that begins anew: with the first permit after its end, or with the calendar.
--
-- Included. State STRING of two doubles: how many were taken, and the end of the window, ms
-- Words 1 count   2 length, ms
--       or 2 0   3... five bounds of consecutive calendar periods, ms
--
-- The end stands in the state, so that it holds to the millisecond; the expiry only tidies up.

local fixed_window = {}
kinds.fixed_window = fixed_window
local last_bound = 6  -- behind the count

-- Where the first bound after the present stands in ARGV, when one stands before it as well.
local function next_bound(at)
  local bound, last = at + 2, at + last_bound
  while bound <= last and tonumber(ARGV[bound]) <= now do
    bound = bound + 1
  end
  return bound > at + 2 and bound <= last and bound
end

function fixed_window.read(place, at)
  local count, length, ends, bound = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), nil, nil
  if length > 0 then
    ends = now + length
  else
    bound = next_bound(at)
    if not bound then
      return nil
    end
    ends = tonumber(ARGV[bound])
  end
  local value, taken, old_end = redis.call('GET', KEYS[place]), 0, 0
  if value then
    taken, old_end = struct.unpack('<dd', value)
  end
  local open = old_end > now
  local state = {
    kind = fixed_window, place = place, count = count,
    room = open and count - taken or count, ends = open and old_end or ends,
    open = open, length = length
  }
  if not bound then
    return state, at + 2
  end
  state.bound, state.last = bound, at + last_bound
  return state, at + last_bound + 1
end

function fixed_window.wait(state, n, ahead)
  local further = math.ceil((ahead + n) / state.count) - 1
  if state.length > 0 then
    return state.ends - now + further * state.length
  end
  return math.max(state.ends, tonumber(ARGV[math.min(state.bound + further, state.last)])) - now
end

function fixed_window.take(state, n)
  state.room = state.room - n
  local key, value = KEYS[state.place], struct.pack('<dd', state.count - state.room, state.ends)
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
  local opened = state.bound and tonumber(ARGV[state.bound - 1]) or state.ends - state.length
  if not state.open or at / 1000 < opened or state.room + n > state.count then
    return 0
  end
  fixed_window.take(state, -n)
  return n
end
