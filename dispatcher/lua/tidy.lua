-- Forget members of a window that no quota can count any more, and let the window expire when its
-- last member can be forgotten.
--
-- KEYS  1 window ZSET
-- ARGV  1 length to keep a member after its time, ms
-- Reply 1

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[1])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then
  redis.call('PEXPIREAT', KEYS[1], last[2] + ARGV[1])
end
return 1
