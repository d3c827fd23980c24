-- Copy a window for a plan, a bounded step at a time.
--
-- KEYS  1 window ZSET   2 its copy, a ZSET   3 HASH of the plan's copies in this shard   4 epoch HASH
-- ARGV  1 most members to copy in this call   2 life of the copy and of the HASH, ms
--       3 1 when the plan has copied in this shard before, else 0
-- Reply 'complete'   the copy has every member of the window
--       'more'       call again to go on
--       'lost'       the plan has copied here before, and its copies are gone
--       'closed'     the shard is not complete: rebuild first; nothing was copied
--
-- Idempotent. A copy that is complete stays as it is: the plan books in it. A member that keeps its
-- time from the first call to the last is copied, whatever others come and go meanwhile.

-- How many words one ZADD takes: Lua unpacks no more than some thousands.
local MOST_WORDS = 1000
-- Among so many of the last copied members is one that is still at its rank in the window. If not,
-- copying begins anew.
local LOOK_BACK = 100

if redis.call('EXISTS', KEYS[4]) == 0 then
  return 'closed'
end
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then
  return 'lost'
end
if redis.call('HGET', KEYS[3], KEYS[2]) == 'complete' then
  return 'complete'
end

local most = tonumber(ARGV[1])
local first = 0
local copied = redis.call('ZRANGE', KEYS[2], -LOOK_BACK, -1, 'WITHSCORES')
for index = #copied - 1, 1, -2 do
  if redis.call('ZSCORE', KEYS[1], copied[index]) == copied[index + 1] then
    first = redis.call('ZRANK', KEYS[1], copied[index]) + 1
    break
  end
end
local found = redis.call('ZRANGE', KEYS[1], first, first + most - 1, 'WITHSCORES')
for start = 1, #found, MOST_WORDS do
  local words = {}
  for index = start, math.min(start + MOST_WORDS, #found + 1) - 1, 2 do
    words[#words + 1] = found[index + 1]
    words[#words + 1] = found[index]
  end
  redis.call('ZADD', KEYS[2], unpack(words))
end
local state = #found < 2 * most and 'complete' or 'more'
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[3], KEYS[2], state)
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return state
