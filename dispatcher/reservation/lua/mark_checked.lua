-- Remember that the messages stored while a shard was being rebuilt were looked for.
--
-- KEYS  1 epoch HASH
-- ARGV  1 when the shard was opened after that rebuild, ms
-- Reply 1, or 0 when the epoch is gone or of another rebuild; then nothing was written
--
-- Idempotent.

if redis.call('HGET', KEYS[1], 'opened_at_ms') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'checked', 1)
return 1
