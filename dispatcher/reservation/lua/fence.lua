-- Take back a part's epoch when the data behind it may not be complete: the server is another
-- process than the one they were checked against, they were laid out for another number of shards,
-- or the settings now look further back than they reach. Sent as the first words on every new
-- connection, so that no script can run against data that a restart or a failover made stale.
--
-- KEYS  1 epoch HASH: a second key would be refused while the hash slot moves to another node
-- ARGV  1 identity of the server process   2 number of shards
--       3... name and length in ms of each reach the settings need
-- Reply 1 the part is complete   0 it is not   2 it is not, nor is any other: the layout changed

local epoch = redis.call('HMGET', KEYS[1], 'server', 'shards')
if not epoch[1] then
  return 0
end
if epoch[1] ~= ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 0
end
if epoch[2] ~= ARGV[2] then
  redis.call('DEL', KEYS[1])
  return 2
end
for position = 3, #ARGV, 2 do
  local reach = tonumber(redis.call('HGET', KEYS[1], 'reach:' .. ARGV[position])) or 0
  if reach < tonumber(ARGV[position + 1]) then
    redis.call('DEL', KEYS[1])
    return 0
  end
end
return 1
