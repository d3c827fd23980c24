-- Make a hold the reservation of its message: the store has the new time. The old reservation is
-- released at once.
--
-- KEYS  1 pending ZSET   2 moved HASH   3... window ZSETs
-- ARGV  1 message id, 16 bytes   2 hold   3 its time, ms
--       4 a time by this server's clock after which the store gave the token, ms
--       5 token that the store gave with the new time   6 life of the HASH, ms
-- Reply 1 when it is done; 0 when some window has lost the hold, or has it at another time, or the
--       life is over: then nothing changes
--
-- Idempotent. The HASH has, for each window, the token of the last time that it has seen. A window
-- that has seen a later one only gives up the hold. The message is pending again, so that
-- reconcile compares both times once more.

-- @include clock.lua

local id, hold, at, token, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5]), now_ms()
local seen = redis.call('HMGET', KEYS[2], unpack(KEYS, 3))
local is_alive = tonumber(ARGV[4]) > now - tonumber(ARGV[6])
for index = 3, #KEYS do
  local is_late = tonumber(seen[index - 2] or -1) >= token
  local held = redis.call('ZSCORE', KEYS[index], hold)
  if not is_late and not (is_alive and held and tonumber(held) == at) then
    return 0
  end
end
for index = 3, #KEYS do
  local window = KEYS[index]
  redis.call('ZREM', window, hold)
  redis.call('ZREM', KEYS[1], hold .. window)
  if tonumber(seen[index - 2] or -1) < token then
    redis.call('ZADD', window, at, id)
    redis.call('ZADD', KEYS[1], now, id .. window)
    redis.call('HSET', KEYS[2], window, token)
    redis.call('PEXPIRE', KEYS[2], ARGV[6])
  end
end
return 1
