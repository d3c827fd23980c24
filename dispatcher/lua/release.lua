-- Give a reservation back.
--
-- KEYS  1 window ZSET   2 pending ZSET
--       3 twins HASH (only for the submit of a message with an idempotency key)
-- ARGV  1 message id, 16 bytes   2 token of the submit that gives up (only with KEYS[3])
-- Reply 1 when it is given back or was not there, 0 when another submit still relies on it
--
-- Idempotent. With a twins HASH only the last submit under way gives the reservation back; when
-- the HASH has expired nobody can tell, so it stays, and reconcile decides from the store.

if KEYS[3] then
  local held = redis.call('HDEL', KEYS[3], 'by:' .. ARGV[2]) == 1
  local others = redis.call('HLEN', KEYS[3]) - 2  -- beside id and fingerprint
  if not held or others > 0 then
    return 0
  end
  redis.call('DEL', KEYS[3])
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1] .. KEYS[1])
return 1
