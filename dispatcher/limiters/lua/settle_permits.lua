-- Move permits that were used to the time of their send.
--
-- KEYS  per permit and log: the log, a ZSET of permits
-- ARGV  of each: time since the send ended in ms (negative: how long the permit may still be used),
--       permit id
-- Reply 1
--
-- A permit that is not in its log (it was returned, or Redis was emptied) is not added. A log lives
-- as long after its latest permit as take_permits.lua has said; one that is moved beyond that takes
-- the end of the log with it.

local time = redis.call('TIME')
-- Rounded up: a send must not count from earlier than it was.
local now = time[1] * 1000 + math.floor(time[2] / 1000) + 1
for index, log in ipairs(KEYS) do
  local at, id = now - ARGV[2 * index - 1], ARGV[2 * index]
  local last = at > now and tonumber(redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')[2])
  local moved = redis.call('ZADD', log, 'XX', 'CH', at, id) == 1
  local left = moved and last and at > last and redis.call('PTTL', log) or -1
  if left >= 0 then
    -- PEXPIRE takes whole ms; the score of a restored permit ends in .5.
    redis.call('PEXPIRE', log, math.ceil(left + at - last))
  end
end
return 1
