-- Take permits for requests, in order; each from several limits, from all of them or from none.
--
-- KEYS  1, 2 remembered permits, HASHes   3... state of each limit
-- ARGV  1 span for which permits are remembered, ms   2... per limit: kind, words; then per request:
--       permit id; 1 if it is new: nobody can have asked under it before, else 0; permits wanted; the
--       least that is of use; how many limits, and which: 1 for that of KEYS[3]. After a single
--       request for all limits the last two are left out.
-- Reply {now}   the calendar periods of a limit do not cover the present
--       or now, ms, and per request five integers: permits granted; wait in ms until the least
--       that is of use is free, when those refused before it go first; which of its limits decides,
--       from 1: the one it waits for, or the one with the least room; permits left there; ms until
--       nothing that was taken there counts any more
--
-- Idempotent by permit id, for as long as it is remembered; a hold that has ended since is taken
-- anew, or refused. What is refused leaves nothing.

-- @include limits.lua
-- @include limits_remembered.lua

local limits, at = read_limits(2, 3)
if not limits then
  return {now}
end

-- Which of its limits has the least room, and how much.
local function tightest(mine)
  local place, room = 1, math.huge
  for number = 1, #mine do
    if mine[number].room < room then
      place, room = number, mine[number].room
    end
  end
  return place, room
end

-- Take permits of which there is room; say how many are left, and when none counts any more.
local function take(mine, id, n, place, room)
  for number = 1, #mine do
    mine[number].kind.take(mine[number], n, id)
  end
  if span > 0 then
    remember(id, n)
  end
  local decides = mine[place]
  return room < math.huge and room - n or 0, decides and decides.kind.whole(decides) or 0
end

-- Most calls are one new request that fits, and do without the functions that follow.
local single = #ARGV == at + 3
if single and ARGV[at + 1] == '1' then
  local wanted, least, place, room =
    tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tightest(limits)
  if room >= least then
    local n = math.min(wanted, room)
    return {now, n, 0, place, take(limits, ARGV[at], n, place, room)}
  end
end

-- The permits of that id which count already: as remembered, held, or in the longest log.
local function taken_before(mine, id)
  local taken, log = span > 0 and remembered(id) or 0, nil
  for number = 1, #mine do
    local limit = mine[number]
    if limit.kind.holds then
      limit.held = limit.kind.knows(limit, id)
      taken = math.max(taken, limit.held)
    elseif limit.kind.knows and (not log or limit.length > log.length) then
      log = limit
    end
  end
  return taken == 0 and log and log.kind.knows(log, id) or taken
end

-- Of permits that were taken before, take the holds that have ended anew; false: there is no room.
local function hold_again(mine, id, n)
  for _, limit in ipairs(mine) do
    if limit.held == 0 and limit.room < n then
      return false
    end
  end
  for _, limit in ipairs(mine) do
    if limit.held == 0 then
      limit.kind.take(limit, n, id)
    end
  end
  return true
end

-- How long the least that is of use must wait, for which of its limits, and the room there.
local function slowest(mine, least, again)
  local longest, place = 0, 1
  for number, limit in ipairs(mine) do
    if limit.room < least and (not again or limit.held == 0) then
      local wait = limit.kind.wait(limit, least, limit.ahead or 0)
      limit.ahead = (limit.ahead or 0) + least
      if wait > longest then
        longest, place = wait, number
      end
    end
  end
  return longest, place, mine[place].room
end

-- Take what a request wants, whose words begin at ARGV[at]; the five integers of the reply.
local function answer(mine, at)
  local id, wanted, least = ARGV[at], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local place, room = tightest(mine)
  local granted, wait = ARGV[at + 1] == '0' and taken_before(mine, id) or 0, 0
  if granted == 0 and room >= least then
    granted = math.min(wanted, room)
    return granted, 0, place, take(mine, id, granted, place, room)
  elseif granted == 0 then
    wait, place, room = slowest(mine, least, false)
  elseif hold_again(mine, id, granted) then
    place, room = tightest(mine)
  else
    wait, place, room = slowest(mine, granted, true)
    granted = 0
  end
  local decides = mine[place]
  local whole = decides and decides.kind.whole(decides) or 0
  return granted, wait, place, room < math.huge and math.max(0, room) or 0, whole
end

if single then
  return {now, answer(limits, at)}
end

local reply = {now}
while at <= #ARGV do
  local mine, many = {}, tonumber(ARGV[at + 4])
  for number = 1, many do
    mine[number] = limits[tonumber(ARGV[at + 4 + number])]
  end
  local base = #reply
  reply[base + 1], reply[base + 2], reply[base + 3], reply[base + 4], reply[base + 5] =
    answer(mine, at)
  at = at + 5 + many
end
return reply
