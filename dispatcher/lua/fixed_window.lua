-- A count that begins anew: with the first permit after its end, or with the calendar.
--
-- Included. State HASH; n: how many were taken, e: end of the window, ms
-- Words 1 count   2 length, ms   3... bounds of consecutive calendar periods, ms; then no length
--
-- The end stands in the state, so that it holds to the millisecond; the expiry only tidies up.

local fixed_window = {}
kinds.fixed_window = fixed_window

function fixed_window.read(place, at, words)
  local count, ends, length, bound = tonumber(ARGV[at]), nil, nil, at + 1
  if words == 2 then
    length = tonumber(ARGV[bound])
    ends = now + length
  else
    local last = at + words - 1
    while bound <= last and tonumber(ARGV[bound]) <= now do
      bound = bound + 1
    end
    if bound == at + 1 or bound > last then
      return nil
    end
    ends = tonumber(ARGV[bound])
  end
  local kept = redis.call('HMGET', KEYS[place], 'n', 'e')
  local old_end = kept[2] and tonumber(kept[2]) or 0
  local state = {kind = fixed_window, place = place, count = count, room = count, ends = ends}
  if old_end > now then
    state.room, state.ends, state.open = count - kept[1], old_end, true
  end
  if length then
    state.length = length
  else
    state.bound, state.last = bound, at + words - 1
  end
  return state
end

function fixed_window.wait(state, n, ahead)
  local further = math.ceil((ahead + n) / state.count) - 1
  if state.length then
    return state.ends - now + further * state.length
  end
  return math.max(state.ends, tonumber(ARGV[math.min(state.bound + further, state.last)])) - now
end

function fixed_window.take(state, n)
  local key = KEYS[state.place]
  if state.open then
    redis.call('HINCRBY', key, 'n', n)
  else
    redis.call('HSET', key, 'n', n, 'e', state.ends)
    redis.call('PEXPIREAT', key, state.ends)
    state.open = true
  end
  state.room = state.room - n
end

function fixed_window.whole(state)
  return state.open and state.ends - now or 0
end

function fixed_window.back(state, n, _, at)
  local opened = state.length and state.ends - state.length or tonumber(ARGV[state.bound - 1])
  if not state.open or at / 1000 < opened or state.room + n > state.count then
    return 0
  end
  redis.call('HINCRBY', KEYS[state.place], 'n', -n)
  return n
end
