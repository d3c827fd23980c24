-- Close a shard and mark it as being rebuilt by the caller, in one step: no other rebuild can begin in
-- between.
--
-- KEYS  1 epoch HASH   2 rebuild STRING
-- ARGV  1 marker: identity of the server process, then a random token   2 its life, ms
-- Reply 1 when the caller may rebuild, 0 when another rebuild is under way; then nothing was changed
--
-- Idempotent by marker.

local marker = redis.call('GET', KEYS[2])
if marker and marker ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 1
