-- Move permits that were used to the time of their hand-over.
--
-- KEYS  logs, ZSETs of permits
-- ARGV  per permit: place of its log in KEYS, permit id, time since the hand-over ended in ms
--       (negative: how long it may still be used)
-- Reply 1
--
-- A permit that is not in its log (it was given back, or Redis was emptied) is not added.

local time = redis.call('TIME')
-- Rounded up: a hand-over must not count from earlier than it was.
local now = time[1] * 1000 + math.floor(time[2] / 1000) + 1
for position = 1, #ARGV, 3 do
  local at = now - ARGV[position + 2]
  redis.call('ZADD', KEYS[tonumber(ARGV[position])], 'XX', at, ARGV[position + 1])
end
return 1
