-- Settle what is pending of a message in one window: the window keeps the member that the store has, and
-- loses this one if it is another; unless it was asked for again since.
--
-- KEYS  1 window ZSET   2 pending ZSET
-- ARGV  1 member that is pending   2 time up to which the entry in pending counts, ms
--       3 member that the store has; '': by the store the message needs no reservation
--       4 its send_at in the store, ms
-- Reply 1 when the window had the member of the store at another time, or not at all; else 0
--
-- Idempotent. A member that the store does not have now will never be the store's. What is put back here
-- is pending again, and younger than what this run settles: the store may have moved on since it was
-- read.

local reserved = redis.call('ZSCORE', KEYS[2], ARGV[1] .. KEYS[1])
if not reserved or tonumber(reserved) > tonumber(ARGV[2]) then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1] .. KEYS[1])
if ARGV[1] ~= ARGV[3] then
  redis.call('ZREM', KEYS[1], ARGV[1])
end
if ARGV[3] == '' then
  return 0
end
local at = redis.call('ZSCORE', KEYS[1], ARGV[3])
if at and tonumber(at) == tonumber(ARGV[4]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[3])
redis.call('ZADD', KEYS[2], 'NX', ARGV[2] + 1, ARGV[3] .. KEYS[1])
return 1
