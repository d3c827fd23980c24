-- Make a hold the place of its message: the store has the new time. The old place is free at once.
--
-- KEYS  1 pending ZSET   2... window ZSETs
-- ARGV  1 message id, 16 bytes   2 hold
-- Reply how many windows had the hold
--
-- Idempotent. The message is pending again, so that reconcile compares both times once more.

-- @include booking.lua

local taken = 0
for place = 2, #KEYS do
  local window = KEYS[place]
  local at = redis.call('ZSCORE', window, ARGV[2])
  if at then
    redis.call('ZADD', window, at, ARGV[1])
    redis.call('ZREM', window, ARGV[2])
    redis.call('ZREM', KEYS[1], ARGV[2] .. window)
    redis.call('ZADD', KEYS[1], now_ms(), ARGV[1] .. window)
    taken = taken + 1
  end
end
return taken
