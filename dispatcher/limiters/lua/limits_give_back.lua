-- Return the permits of one id to all limits that they were taken from.
--
-- KEYS  1, 2 remembered permits, HASHes   3... state of each limit
-- ARGV  1 span for which permits are remembered, ms   2... per limit: kind, words   then permit id
-- Reply {now}   the calendar periods of a limit do not cover the present
--       or now, ms, and how many permits were returned
--
-- Idempotent: afterwards the id is unknown, also where no permit was returned because the window has
-- ended since. A request with the same id takes permits anew.

-- @include limits.lua

local limits, at_id = read_limits(2, 3)
if not limits then
  return {now}
end
local id = ARGV[at_id]
local n, at, of, most = 0, 0, '', 0
if span > 0 then
  n, at, of = remembered(id)
end
for number, limit in ipairs(limits) do
  local is_its = n > 0 and (of == '' or string.find(of, ',' .. number .. ',', 1, true))
  local mine = is_its and n or 0
  if limit.kind.knows then
    mine = limit.kind.knows(limit, id)
  end
  local returned = mine > 0 and limit.kind.back(limit, mine, id, at) or 0
  most = math.max(most, returned)
end
if n > 0 then
  redis.call('HDEL', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
return {now, most}
