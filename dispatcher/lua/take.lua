-- Make a hold the place of its message: the store has the new time. The old place is free at once.
--
-- KEYS  1 pending ZSET   2 moved STRING   3... window ZSETs
-- ARGV  1 message id, 16 bytes   2 hold   3 token that the store gave with the new time
--       4 life of the STRING, ms
-- Reply 1 when it is done, or the message has been moved further since; 0 when the hold is gone in
--       some window: then nothing changes
--
-- Idempotent. The STRING has the token of the last move that was taken, so that an older one that
-- comes late only gives up its hold. It lives as long as a hold can be taken. The message is pending
-- again, so that reconcile compares both times once more.

-- @include booking.lua

local token, life, now = tonumber(ARGV[3]), tonumber(ARGV[4]), now_ms()
local is_late = tonumber(redis.call('GET', KEYS[2]) or -1) >= token
local found = {}
for place = 3, #KEYS do
  local at = redis.call('ZSCORE', KEYS[place], ARGV[2])
  local held_at = redis.call('ZSCORE', KEYS[1], ARGV[2] .. KEYS[place])
  if not is_late and not (at and held_at and tonumber(held_at) > now - life) then
    return 0
  end
  found[place] = at
end
for place = 3, #KEYS do
  local window = KEYS[place]
  redis.call('ZREM', window, ARGV[2])
  redis.call('ZREM', KEYS[1], ARGV[2] .. window)
  if not is_late then
    redis.call('ZADD', window, found[place], ARGV[1])
    redis.call('ZADD', KEYS[1], now, ARGV[1] .. window)
  end
end
if not is_late then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
return 1
