-- Forget members of a window that no quota can count any more, and let the window expire when its
-- last member can be forgotten. How far back members count is what the epoch promises, which may
-- be further than this caller's quotas need: others may have longer ones.
--
-- KEYS  1 window ZSET   2 epoch HASH
-- ARGV  1 how much longer than that a member is kept, ms
--       2 name of the epoch's field that says how far back
-- Reply 1, or 0 when the shard is not complete; then nothing was done

local reach = redis.call('HGET', KEYS[2], ARGV[2])
if not reach then
  return 0
end
local keep = reach + ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - keep)
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then
  redis.call('PEXPIREAT', KEYS[1], last[2] + keep)
end
return 1
