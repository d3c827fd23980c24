-- At most so many permits in use at once: each is a hold that ends by itself unless it is renewed.
--
-- Included. State ZSET; member: permit id, for further ones of one call id, NUL, number;
-- score: when its hold ends, ms
-- Words 1 count   2 length of a hold, ms

-- @include limits_members.lua

local concurrency = {holds = true}
kinds.concurrency = concurrency

function concurrency.read(index, at)
  local count = tonumber(ARGV[at])
  local taken = redis.call('ZCOUNT', KEYS[index], now + 1, '+inf')
  return {
    kind = concurrency, index = index,
    count = count, room = count - taken, length = tonumber(ARGV[at + 1]), taken = taken
  }, at + 2
end

function concurrency.wait(state, n, ahead)
  local cycles = math.floor((ahead + n - 1) / state.count)
  local rank = state.count - (ahead + n - cycles * state.count)
  local member = redis.call('ZREVRANGE', KEYS[state.index], rank, rank, 'WITHSCORES')
  local ends = member[2] and tonumber(member[2]) or now
  return math.max(0, ends - now) + cycles * state.length
end

-- Ended holds do not count; one call in sixteen removes them. The key outlives every hold, also those
-- that another limit of this name took for longer.
function concurrency.take(state, n, id)
  local key, ends = KEYS[state.index], now + state.length
  add_members(key, ends, id, n)
  if now_us % 16 == 0 then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  end
  if state.taken == 0 or redis.call('PTTL', key) < state.length then
    redis.call('PEXPIRE', key, 2 * state.length)
  end
  state.taken, state.room = state.taken + n, state.room - n
end

function concurrency.whole(state)
  if state.taken == 0 then
    return 0
  end
  local last = redis.call('ZREVRANGE', KEYS[state.index], 0, 0, 'WITHSCORES')
  return last[2] and math.max(0, last[2] - now) or 0
end

function concurrency.knows(state, id)
  local key = KEYS[state.index]
  local ends = redis.call('ZSCORE', key, id)
  if not ends or tonumber(ends) <= now then
    return 0
  end
  return count_members(key, ends, id)
end

function concurrency.back(state, n, id)
  return remove_members(KEYS[state.index], id, n)
end
