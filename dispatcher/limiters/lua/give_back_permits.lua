-- Return permits that were not used, and note in which logs that makes room for waiting messages.
--
-- KEYS  1 room ZSET; member: name of a log, score: permits returned while messages waited for it
--       2... per permit and log: the log, a ZSET of permits; its line, its order, its shares
-- ARGV  1 how long room is remembered, ms
--       2... of each: permit id, priority, 0 or in how many ms it comes again: first of its class
-- Reply 1
--
-- Idempotent: a permit that is not in its log makes no room.

local made_room = false
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for index = 2, #ARGV, 3 do
  local key = 2 + (index - 2) / 3 * 4
  local log, line, id, wait = KEYS[key], KEYS[key + 1], ARGV[index], tonumber(ARGV[index + 2])
  if redis.call('ZREM', log, id) == 1 and redis.call('EXISTS', line) == 1 then
    redis.call('ZINCRBY', KEYS[1], 1, log)
    made_room = true
    local first = wait > 0 and redis.call('ZSCORE', KEYS[key + 3], ARGV[index + 1])
    if first then
      redis.call('ZADD', KEYS[key + 2], first, string.sub(id, 1, 16))
      redis.call('ZADD', line, now + wait, string.sub(id, 1, 16))
    end
  end
end
if made_room then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
