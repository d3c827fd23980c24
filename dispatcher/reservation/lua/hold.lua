-- Hold a time without judging it, so that others count it while it is judged.
--
-- KEYS  1 pending ZSET   2 epoch HASH   3... window ZSETs
-- ARGV  1 hold: message id (16 bytes), then a token without "{"   2 time, ms
-- Reply 1, or 0 when the shard is not complete; then nothing was written
--
-- Idempotent. A hold that is neither taken nor dropped is settled by reconcile like a reservation.

-- @include clock.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
local now = now_ms()
for index = 3, #KEYS do
  redis.call('ZADD', KEYS[index], ARGV[2], ARGV[1])
  redis.call('ZADD', KEYS[1], now, ARGV[1] .. KEYS[index])
end
return 1
