-- Mark a shard whose epoch is missing as being rebuilt by the caller.
--
-- KEYS  1 epoch HASH   2 rebuild STRING
-- ARGV  1 marker: identity of the server process, then a random token   2 its life, ms
-- Reply 1 when the caller may rebuild, 0 when the shard is complete or another rebuild is under way
--
-- Idempotent by marker.

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  return 1
end
return redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0
