-- Put reservations that the store knows back into a window, while the shard is being rebuilt.
--
-- KEYS  1 rebuild STRING   2 window ZSET   3 pending ZSET
-- ARGV  1 marker   2 life of the marker, ms
--       3... send_at in ms and message id of each reservation
-- Reply 1, or 0 when the marker is no longer the caller's; then nothing was written
--
-- They go to pending too: a message that is cancelled while this runs is found there.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for position = 3, #ARGV, 2 do
  redis.call('ZADD', KEYS[2], ARGV[position], ARGV[position + 1])
  redis.call('ZADD', KEYS[3], 'NX', now, ARGV[position + 1] .. KEYS[2])
end
return 1
