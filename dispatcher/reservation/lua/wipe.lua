-- Delete what is left of a part before it is filled again.
--
-- KEYS  1 rebuild STRING   2... keys to delete
-- ARGV  1 marker   2 life of the marker, ms
-- Reply 1, or 0 when the marker is no longer the caller's; then nothing was deleted
--
-- Idempotent.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for position = 2, #KEYS do
  redis.call('UNLINK', KEYS[position])
end
return 1
