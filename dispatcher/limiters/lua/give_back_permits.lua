-- Return permits that were not used, and note in which logs that makes room for waiting messages.
--
-- KEYS  1 room ZSET; member: name of a log, score: permits returned while messages waited for it
--       2... per permit and log: the log, a ZSET of permits, and its line
-- ARGV  1 how long room is remembered, ms   2... permit id of each
-- Reply 1
--
-- Idempotent: a permit that is not in its log makes no room.

local made_room = false
for number = 2, #ARGV do
  local log, line = KEYS[2 * number - 2], KEYS[2 * number - 1]
  if redis.call('ZREM', log, ARGV[number]) == 1 and redis.call('EXISTS', line) == 1 then
    redis.call('ZINCRBY', KEYS[1], 1, log)
    made_room = true
  end
end
if made_room then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
