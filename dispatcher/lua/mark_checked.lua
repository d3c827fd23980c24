-- Remember that the messages stored while a shard was being rebuilt were looked for.
--
-- KEYS  1 epoch HASH
-- Reply 1, or 0 when the epoch is gone; then nothing was written

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('HSET', KEYS[1], 'checked', 1)
return 1
