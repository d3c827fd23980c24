-- Take permits for requests, in order; each from several limits, from all of them or from none.
--
-- KEYS  1, 2 remembered permits, HASHes   3... state of each limit
-- ARGV  1 span for which permits are remembered, ms   2... per limit: kind, words
--       then, of a single request for all limits: permit id, '' to take nothing; permits wanted, 0 or
--       more; the least that is of use
--       or, of a group, JSON of two lists: per limit, for how many permits earlier scripts of the group
--       refused requests, and how many it may still give to the group; per request, its permit id,
--       permits wanted, its limits among those of the set (",1,3,"; "": all), and which these are: 1
--       for that of KEYS[3]
-- Reply {now}   the calendar periods of a limit do not cover the present
--       or now, ms, and what was decided: permits granted; wait in ms until the least that is of use is
--       free, when those refused before it go first, 0: it is allowed, -1: never; which of its limits
--       decides, from 1: the one it waits for, or the one with the least room; permits left there; ms
--       until nothing that was taken there counts any more; of each of its limits that refused: which,
--       and the wait there, as above
--       or, of a group, now, such a list per request, and what the next script of the group needs per
--       limit, as above
--
-- Idempotent by permit id, for as long as it is remembered; a hold that has ended since is taken
-- anew, or refused. A refused request takes nothing, nor does one for 0 permits.

-- @include limits.lua

local limits, at = read_limits(2, 3)
if not limits then
  return {now}
end

-- Which of its limits has the least room, and how much.
local function tightest(mine)
  local index, room = 1, math.huge
  for number = 1, #mine do
    if mine[number].free < room then
      index, room = number, mine[number].free
    end
  end
  return index, room
end

local function take(limit, id, n)
  limit.kind.take(limit, n, id)
  limit.free = limit.free - n
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
    if limit.held == 0 and limit.free < n then
      return false
    end
  end
  for _, limit in ipairs(mine) do
    if limit.held == 0 then
      take(limit, id, n)
    end
  end
  return true
end

-- Which of its limits refuse, as the reply tells it: with the wait until the least that is of use is
-- free there. A request that a limit can never grant makes no other one wait, in no limit.
local function refusing(mine, least, again)
  local refusals, longest, index, comes_back = {}, 0, 1, true
  for _, limit in ipairs(mine) do
    comes_back = comes_back and (limit.count == 0 or least <= limit.count)
  end
  for number, limit in ipairs(mine) do
    if limit.free < least and (not again or limit.held == 0) then
      local wait = -1
      if limit.count == 0 or least <= limit.count then
        wait = math.max(1, limit.kind.wait(limit, least, limit.ahead or 0))
        limit.ahead = (limit.ahead or 0) + (comes_back and least or 0)
      end
      refusals[#refusals + 1] = number
      refusals[#refusals + 1] = wait
      if longest >= 0 and (wait < 0 or wait > longest) then
        longest, index = wait, number
      end
    end
  end
  return refusals, longest, index
end

-- Take what a request wants; return what the reply says of it.
local function decide(mine, id, wanted, least)
  local index, room = tightest(mine)
  local granted = id ~= '' and wanted > 0 and taken_before(mine, id) or 0
  local refusals, wait = {}, 0
  if granted > 0 then
    if hold_again(mine, id, granted) then
      index = tightest(mine)
    else
      refusals, wait, index = refusing(mine, granted, true)
      granted = 0
    end
  elseif wanted > 0 and room < least then
    refusals, wait, index = refusing(mine, least, false)
  elseif wanted > 0 and id ~= '' then
    granted = math.min(wanted, room)
    for number = 1, #mine do
      take(mine[number], id, granted)
    end
    if span > 0 then
      remember(id, granted, mine.of)
    end
  end
  local decides = mine[index]
  local left = decides and decides.free < math.huge and math.max(0, decides.free) or 0
  local whole = decides and decides.kind.whole(decides) or 0
  return {granted, wait, index, left, whole, unpack(refusals)}
end

if #ARGV > at then
  return {now, unpack(decide(limits, ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])))}
end

local standings, requests = unpack(cjson.decode(ARGV[at]))
for number, limit in ipairs(limits) do
  local ahead, most = unpack(standings[number])
  limit.ahead = ahead
  limit.free = limit.count > 0 and math.min(limit.room, most) or limit.room
end
local reply = {now}
for _, request in ipairs(requests) do
  local id, wanted, of, numbers = unpack(request)
  local mine = {of = of ~= '' and of or nil}
  for _, number in ipairs(numbers) do
    mine[#mine + 1] = limits[number]
  end
  reply[#reply + 1] = decide(mine, id, wanted, wanted)
end
for number, limit in ipairs(limits) do
  standings[number] = {limit.ahead, limit.count > 0 and limit.free or 0}
end
reply[#reply + 1] = standings
return reply
