-- Release the reservation, or the hold, of a message that the store does not know to need it, unless
-- it was asked for again since.
--
-- KEYS  1 window ZSET   2 pending ZSET
-- ARGV  1 member: a message id, or a hold
--       2 time up to which its entry in pending counts as an orphan's, ms
-- Reply 1 when it was released, else 0
--
-- Idempotent.

local reserved = redis.call('ZSCORE', KEYS[2], ARGV[1] .. KEYS[1])
if not reserved or tonumber(reserved) > tonumber(ARGV[2]) then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1] .. KEYS[1])
return 1
