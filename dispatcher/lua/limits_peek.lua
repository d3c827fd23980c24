-- Tell what limits would give, and take nothing.
--
-- KEYS  1... state of each limit
-- ARGV  1 permits that one would like   2... per limit: kind, words
-- Reply {now}   the calendar periods of a limit do not cover the present
--       or now, ms; permits that all would give now; wait in ms until as many as one would like are
--       free; which limit decides, from 1; permits left there; ms until nothing that was taken
--       there counts any more

-- @include limits.lua

local limits = read_limits(2, 1)
if not limits then
  return {now}
end
local wanted, room, wait, place = tonumber(ARGV[1]), math.huge, 0, 1
for number, limit in ipairs(limits) do
  local left = limit.room
  local longer = left < wanted and limit.kind.wait(limit, wanted, 0) or 0
  if longer > wait or (wait == 0 and left < room) then
    place, wait = number, longer
  end
  room = math.min(room, left)
end
local decides = limits[place]
local left = math.max(0, decides.room)
room = math.max(0, math.min(room, wanted))
return {now, room, wait, place, left < math.huge and left or 0, decides.kind.whole(decides)}
