-- Declare a rebuilt part complete.
--
-- KEYS  1 epoch HASH   2 rebuild STRING
-- ARGV  1 marker   2 identity of the server process   3 number of shards
--       4... name and length in ms of each reach: how far back the part is complete
-- Reply 1, or 0 when the marker is no longer the caller's; then the part stays closed
--
-- Idempotent but for the reply: the marker is gone after the first call.

-- @include clock.lua

if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'server', ARGV[2], 'shards', ARGV[3],
  'opened_at_ms', now_ms())
for position = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[1], 'reach:' .. ARGV[position], ARGV[position + 1])
end
redis.call('DEL', KEYS[2])
return 1
