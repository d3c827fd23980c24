-- Move permits that were used to the time of their send.
--
-- KEYS  logs, ZSETs of permits
-- ARGV  1 JSON list, per permit: time since its send ended in ms (negative: how long it may
--       still be used), 1-based indexes of its logs
--       2... permit id of each
-- Reply 1
--
-- A permit that is not in its log (it was returned, or Redis was emptied) is not added. A log lives
-- as long after its latest permit as take_permits.lua has said; one that is moved beyond that takes
-- the end of the log with it.

local time = redis.call('TIME')
-- Rounded up: a send must not count from earlier than it was.
local now = time[1] * 1000 + math.floor(time[2] / 1000) + 1
for permit, given in ipairs(cjson.decode(ARGV[1])) do
  local at, id = now - given[1], ARGV[1 + permit]
  for index = 2, #given do
    local log = KEYS[given[index]]
    local last = at > now and tonumber(redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')[2])
    local moved = redis.call('ZADD', log, 'XX', 'CH', at, id) == 1
    local left = moved and last and at > last and redis.call('PTTL', log) or -1
    if left >= 0 then
      -- PEXPIRE takes whole ms; the score of a restored permit ends in .5.
      redis.call('PEXPIRE', log, math.ceil(left + at - last))
    end
  end
end
return 1
