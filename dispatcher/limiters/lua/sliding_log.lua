-- The time of every permit, in a ZSET: exact wherever the period begins.
--
-- Included. State ZSET; member: permit id, for further permits of one call id, NUL, number;
-- score: when it was taken, ms
-- Words 1 count   2 length, ms
--
-- A permit counts until exactly one length after it was taken. Of holds the score says until when.

-- @include limits_members.lua

-- The key outlives each member that counts, also holds that another limit of this name took for longer.
local function kept_limit(holds)
  local kind = {words = 2, holds = holds}

  function kind.read(key, count, length)
    length = tonumber(length)
    local lasts = holds and 0 or length
    local taken = redis.call('ZCOUNT', key, now - lasts + 1, '+inf')
    return {room = count - taken, length = length, lasts = lasts, taken = taken, begun = false}
  end

  -- Of the members, newest first, all but the first count - n must have ended.
  function kind.wait(state, n, ahead)
    local cycles = math.floor((ahead + n - 1) / state.count)
    local rank = state.count - (ahead + n - cycles * state.count)
    local member = redis.call('ZREVRANGE', state.key, rank, rank, 'WITHSCORES')
    local at = member[2] and tonumber(member[2]) or now - state.lasts
    return math.max(0, at + state.lasts - now) + cycles * state.length
  end

  function kind.take(state, n, id)
    local key = state.key
    add_members(key, now + state.length - state.lasts, id, n)
    if not state.begun then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now - state.lasts)
      if redis.call('PTTL', key) < state.length then
        redis.call('PEXPIRE', key, state.length)
      end
    end
    state.taken, state.room, state.begun = state.taken + n, state.room - n, true
  end

  function kind.whole(state)
    if state.taken == 0 then
      return 0
    elseif state.begun and not holds then
      return state.length
    end
    local last = redis.call('ZREVRANGE', state.key, 0, 0, 'WITHSCORES')
    return last[2] and math.max(0, last[2] + state.lasts - now) or 0
  end

  function kind.knows(state, id)
    local at = redis.call('ZSCORE', state.key, id)
    return at and at + state.lasts > now and count_members(state.key, id) or 0
  end

  function kind.back(state, n, id)
    return remove_members(state.key, id, n)
  end

  return kind
end

kinds.sliding_log = kept_limit(false)
