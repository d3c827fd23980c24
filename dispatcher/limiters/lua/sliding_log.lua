-- The time of every permit, in a ZSET: exact wherever the period begins.
--
-- Included. State ZSET; member: permit id, for further permits of one call id, NUL, number;
-- score: when it was taken, ms
-- Words 1 count   2 length, ms
--
-- A permit counts until exactly one length after it was taken. One call in
-- sixteen removes permits that do not count any more.

-- @include limits_members.lua

local sliding_log = {}
kinds.sliding_log = sliding_log

function sliding_log.read(index, at)
  local count, length = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local taken = redis.call('ZCOUNT', KEYS[index], now - length + 1, '+inf')
  return {
    kind = sliding_log, index = index, count = count,
    room = count - taken, length = length, newest = nil
  }, at + 2
end

-- Of the permits in the log, newest first, all but the first count - n must have left.
function sliding_log.wait(state, n, ahead)
  local cycles = math.floor((ahead + n - 1) / state.count)
  local rank = state.count - (ahead + n - cycles * state.count)
  local member = redis.call('ZREVRANGE', KEYS[state.index], rank, rank, 'WITHSCORES')
  local at = member[2] and tonumber(member[2]) or now - state.length
  return math.max(0, at + state.length - now) + cycles * state.length
end

function sliding_log.take(state, n, id)
  local key = KEYS[state.index]
  add_members(key, now, id, n)
  if not state.newest then
    if now_us % 16 == 0 then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now - state.length)
    end
    if state.room == state.count or redis.call('PTTL', key) < state.length then
      redis.call('PEXPIRE', key, 2 * state.length)
    end
  end
  state.room = state.room - n
  state.newest = now
end

function sliding_log.whole(state)
  if state.room >= state.count then
    return 0
  end
  local newest = state.newest
  if not newest then
    newest = tonumber(redis.call('ZREVRANGE', KEYS[state.index], 0, 0, 'WITHSCORES')[2])
  end
  return newest + state.length - now
end

function sliding_log.knows(state, id)
  local key = KEYS[state.index]
  local at = redis.call('ZSCORE', key, id)
  if not at or tonumber(at) <= now - state.length then
    return 0
  end
  return count_members(key, at, id)
end

function sliding_log.back(state, n, id)
  return remove_members(KEYS[state.index], id, n)
end
