-- Take back a shard's epoch when the data behind it may not be complete: the server is another
-- process than the one the windows were checked against, or the settings now ask for more than
-- the windows hold. Sent as the first words on every new connection, so that no script can run
-- against windows that a restart or a failover made stale.
--
-- KEYS  1 epoch HASH   2 rebuild STRING
-- ARGV  1 identity of the server process   2 number of shards   3 longest quota, ms
-- Reply 1 when the shard is complete, else 0

local epoch = redis.call('HMGET', KEYS[1], 'server', 'shards', 'longest_ms')
local marker = redis.call('GET', KEYS[2])
if marker and string.sub(marker, 1, #ARGV[1]) ~= ARGV[1] then
  redis.call('DEL', KEYS[2])
end
if not epoch[1] then
  return 0
end
if epoch[1] ~= ARGV[1] or epoch[2] ~= ARGV[2] or tonumber(epoch[3]) < tonumber(ARGV[3]) then
  redis.call('DEL', KEYS[1])
  return 0
end
return 1
