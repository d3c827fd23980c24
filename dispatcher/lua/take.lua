-- Make a hold the place of its message: the store has the new time. The old place is free at once.
--
-- KEYS  1 pending ZSET   2 moving STRING   3... window ZSETs
-- ARGV  1 message id, 16 bytes   2 hold
-- Reply how many windows had the hold, or 'later': the message was held anew since, so that the
--       store may have that time by now. Then nothing changes: both times stay taken, until
--       reconcile sees which one the store has.
--
-- Idempotent. The message is pending again, so that reconcile compares both times once more.

-- @include booking.lua

local last = redis.call('GET', KEYS[2])
if last ~= ARGV[2] then
  for place = 3, #KEYS do
    if redis.call('ZSCORE', KEYS[place], ARGV[2]) then
      return 'later'
    end
  end
  return 0
end
local taken = 0
for place = 3, #KEYS do
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
redis.call('DEL', KEYS[2])
return taken
