-- The time of every permit, in a LIST: decides as sliding_log.lua does, in a fraction of its
-- memory.
--
-- Included. State LIST of the times of permits, ms, newest first
-- Words 1 count   2 length, ms
--
-- Times that do not count any more are at the end of the list; the next permit cuts them off.

local sliding_list = {words = 2}
kinds.sliding_list = sliding_list

function sliding_list.read(key, count, length)
  length = tonumber(length)
  local since = now - length
  local size = redis.call('LLEN', key)
  local taken = size
  if size > 0 and tonumber(redis.call('LINDEX', key, -1)) <= since then
    taken = 0
    local gone = size - 1
    while taken < gone do
      local middle = math.floor((taken + gone) / 2)
      if tonumber(redis.call('LINDEX', key, middle)) > since then
        taken = middle + 1
      else
        gone = middle
      end
    end
  end
  return {room = count - taken, length = length, stale = size > taken, newest = nil}
end

function sliding_list.wait(state, n, ahead)
  local cycles = math.floor((ahead + n - 1) / state.count)
  local rank = state.count - (ahead + n - cycles * state.count)
  local at = redis.call('LINDEX', state.key, rank)
  at = at and tonumber(at) or now - state.length
  return math.max(0, at + state.length - now) + cycles * state.length
end

function sliding_list.take(state, n)
  local key, taken = state.key, state.count - state.room
  if not state.newest then
    if state.stale and taken > 0 then
      redis.call('LTRIM', key, 0, taken - 1)
    end
    -- Times never fall, also where the clock was set back.
    local last = taken > 0 and tonumber(redis.call('LINDEX', key, 0)) or 0
    state.newest = math.max(now, last)
  end
  local times = {}
  for number = 1, n do -- at most 1,000
    times[number] = state.newest
  end
  redis.call('LPUSH', key, unpack(times))
  -- A length would do, but the version before trusts that a key lives for two.
  redis.call('PEXPIREAT', key, state.newest + 2 * state.length)
  state.room = state.room - n
end

function sliding_list.whole(state)
  if state.room >= state.count then
    return 0
  end
  local newest = state.newest or tonumber(redis.call('LINDEX', state.key, 0))
  return newest + state.length - now
end

function sliding_list.back(state, n, _, at)
  local taken_at = math.floor(at / 1000)
  if taken_at <= now - state.length then
    return 0
  end
  return redis.call('LREM', state.key, n, taken_at)
end
