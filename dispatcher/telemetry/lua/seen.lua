-- Note when something was last seen at work, and forget what was not for long.
--
-- KEYS  1 ZSET of what was seen; score: when, ms
-- ARGV  1 how long it is remembered, ms   2... of each: its name, how long ago it was seen, ms
-- Reply now, ms
--
-- Idempotent, but for the time that passes between two calls: what was seen later stays.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for index = 2, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], 'GT', now - tonumber(ARGV[index + 1]), ARGV[index])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[1]))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return now
