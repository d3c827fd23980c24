-- Return permits that were not used, and note in which logs that makes room for waiting messages.
--
-- KEYS  1 room ZSET; member: name of a log, score: permits returned while messages waited for it
--       2... logs, ZSETs of permits
--       then their lines, in the same order
-- ARGV  1 how long room is remembered, ms   2 number of logs
--       3 JSON list, per permit: 1-based indexes of its logs   4... permit id of each
-- Reply 1
--
-- Idempotent: a permit that is not in its log makes no room.

local logs = tonumber(ARGV[2])
local made_room = false
for permit, indexes in ipairs(cjson.decode(ARGV[3])) do
  for _, index in ipairs(indexes) do
    local log, line = KEYS[1 + index], KEYS[1 + logs + index]
    if redis.call('ZREM', log, ARGV[3 + permit]) == 1 and redis.call('EXISTS', line) == 1 then
      redis.call('ZINCRBY', KEYS[1], 1, log)
      made_room = true
    end
  end
end
if made_room then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
