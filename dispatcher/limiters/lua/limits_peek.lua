-- Return what limits would answer, and take nothing.
--
-- KEYS  1... state of each limit
-- ARGV  1 permits wanted   2... per limit: kind, words
-- Reply {now}   the calendar periods of a limit do not cover the present
--       or now, ms, and what limits_acquire.lua replies to one request: permits granted is 0

-- @include limits.lua

local limits = read_limits(2, 1)
if not limits then
  return {now}
end
local wanted, room, longest, index, refusals = tonumber(ARGV[1]), math.huge, 0, 1, {}
for number, limit in ipairs(limits) do
  local wait = 0
  if limit.room < wanted then
    wait = -1
    if limit.count == 0 or wanted <= limit.count then
      wait = math.max(1, limit.kind.wait(limit, wanted, 0))
    end
    refusals[#refusals + 1] = number
    refusals[#refusals + 1] = wait
  end
  if longest >= 0 and (wait < 0 or wait > longest or (longest == 0 and limit.room < room)) then
    index, longest = number, wait
  end
  room = math.min(room, limit.room)
end
local decides = limits[index]
local left = math.max(0, decides.room)
left = left < math.huge and left or 0
return {
  now, 0, longest, index, left, decides.kind.whole(decides), #refusals / 2, unpack(refusals)
}
