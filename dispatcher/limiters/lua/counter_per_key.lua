-- A plain counter whose expiry is its window, as INCR and EXPIRE make it.
--
-- Included. State STRING of the count
-- Words 1 count   2 length, ms
--
-- Redis drops a key once the time is later than its expiry, so a window of some length expires one
-- millisecond before its end.

local counter_per_key = {words = 2}
kinds.counter_per_key = counter_per_key

function counter_per_key.read(key, count, length)
  local value = redis.call('GET', key)
  local taken = value and tonumber(value) or 0
  local left = value and redis.call('PTTL', key) + 1 or 0
  length = tonumber(length)
  return {
    room = count - taken, length = length, open = left > 0, left = left > 0 and left or length
  }
end

function counter_per_key.wait(state, n, ahead)
  return state.left + (math.ceil((ahead + n) / state.count) - 1) * state.length
end

function counter_per_key.take(state, n)
  redis.call('INCRBY', state.key, n)
  if not state.open then
    redis.call('PEXPIREAT', state.key, now + state.length - 1)
    state.open = true
  end
  state.room = state.room - n
end

function counter_per_key.whole(state)
  return state.open and state.left or 0
end

-- Time that passed between TIME and PTTL makes the window seem to have opened earlier, never later.
function counter_per_key.back(state, n, _, at)
  local opened = now + state.left - state.length
  if not state.open or at / 1000 < opened or state.room + n > state.count then
    return 0
  end
  redis.call('DECRBY', state.key, n)
  return n
end
