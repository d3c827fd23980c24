-- Make a window agree with the store about one message, and forget that it was pending, unless
-- somebody has asked for its place again since.
--
-- KEYS  1 window ZSET   2 pending ZSET   3 moving STRING of the message (move.lua)
-- ARGV  1 member that is pending: the message id, or a hold of the message
--       2 message id, 16 bytes   3 its send_at in the store, ms
--       4 time up to which the entry in pending counts, ms
-- Reply 1 when the window had another time for the message, or none; else 0
--
-- Idempotent. A hold that was not taken ends here: its time is the message's or nobody's. Not where
-- the message itself was booked or moved since: then the time in the store is an older one. Whoever
-- is moving the message comes late from now on, and looks at the store again.

local reserved = redis.call('ZSCORE', KEYS[2], ARGV[1] .. KEYS[1])
if not reserved or tonumber(reserved) > tonumber(ARGV[4]) then
  return 0
end
local own = redis.call('ZSCORE', KEYS[2], ARGV[2] .. KEYS[1])
if own and tonumber(own) > tonumber(ARGV[4]) then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1] .. KEYS[1])
if ARGV[1] ~= ARGV[2] then
  redis.call('DEL', KEYS[3])
  redis.call('ZREM', KEYS[1], ARGV[1])
end
local at = redis.call('ZSCORE', KEYS[1], ARGV[2])
if at and tonumber(at) == tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
return 1
