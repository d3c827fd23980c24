-- Two counters, of the present and the previous stretch of time; the previous one counts by the
-- part of it that a period ending now still covers.
--
-- Included. State HASH; s: number of the present stretch, from 1970 on; p, n: taken in the previous
-- one and in the present one
-- Words 1 count   2 length, ms
--
-- count * length is below 2^53, so that nothing is rounded.

local sliding_counter = {}
kinds.sliding_counter = sliding_counter

function sliding_counter.read(place, at)
  local count, length = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local stretch, previous, present = math.floor(now / length), 0, 0
  local kept = redis.call('HMGET', KEYS[place], 's', 'p', 'n')
  local old = kept[1] and tonumber(kept[1]) or -1
  if old >= stretch then
    stretch, previous, present = old, tonumber(kept[2]), tonumber(kept[3])
  elseif old == stretch - 1 then
    previous = tonumber(kept[3])
  end
  local passed = math.max(0, now - stretch * length)
  return {
    kind = sliding_counter, place = place, count = count, length = length, stretch = stretch,
    room = count - present - math.ceil(previous * (length - passed) / length),
    previous = previous, present = present, open = old == stretch
  }, at + 2
end

-- Stretch by stretch: those ahead take what fits into each before its end. They only become more
-- within a call, so the next one begins where this one came to.
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

function sliding_counter.take(state, n)
  local key = KEYS[state.place]
  state.present, state.room, state.came_to = state.present + n, state.room - n, nil
  if state.open then
    redis.call('HINCRBY', key, 'n', n)
  else
    redis.call('HSET', key, 's', state.stretch, 'p', state.previous, 'n', state.present)
    redis.call('PEXPIREAT', key, (state.stretch + 2) * state.length)
    state.open = true
  end
end

function sliding_counter.whole(state)
  if state.present > 0 then
    return (state.stretch + 2) * state.length - now
  end
  return state.previous > 0 and (state.stretch + 1) * state.length - now or 0
end

function sliding_counter.back(state, n, _, at)
  local stretch = math.floor(at / 1000 / state.length)
  local field = 'n'
  if state.open and stretch == state.stretch - 1 then
    field = 'p'
  elseif stretch ~= state.stretch and (state.open or stretch ~= state.stretch - 1) then
    return 0
  end
  local taken = tonumber(redis.call('HGET', KEYS[state.place], field) or 0)
  if taken < n then
    return 0
  end
  redis.call('HINCRBY', KEYS[state.place], field, -n)
  return n
end
