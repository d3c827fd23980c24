-- Take permits for requests, in order; each from several limits, from all of them or from none.
--
-- KEYS  1, 2 remembered permits, HASHes   3... state of each limit
-- ARGV  1 span for which permits are remembered, ms   2 how many limits
--       3... per limit: kind, how many words, words; then per request: permit id, permits wanted,
--       the least that is of use, how many limits, and which: 1 for that of KEYS[3]
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

local limits, at = read_limits(3, tonumber(ARGV[2]), 3)
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

-- Take what a request wants; the five integers of the reply.
local function answer(mine, id, wanted, least)
  local place, room = tightest(mine)
  local granted, wait = taken_before(mine, id), 0
  if granted > 0 then
    if hold_again(mine, id, granted) then
      place, room = tightest(mine)
    else
      wait, place, room = slowest(mine, granted, true)
      granted = 0
    end
  elseif room >= least then
    granted = math.min(wanted, room)
    for number = 1, #mine do
      mine[number].kind.take(mine[number], granted, id)
    end
    if span > 0 then
      remember(id, granted)
    end
    room = room - granted
  else
    wait, place, room = slowest(mine, least, false)
  end
  local whole = mine[place] and mine[place].kind.whole(mine[place]) or 0
  return granted, wait, place, room < math.huge and math.max(0, room) or 0, whole
end

local many = tonumber(ARGV[at + 3])
if many == #limits and #ARGV == at + 3 + many then
  return {now, answer(limits, ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]))}
end

local reply = {now}
while at <= #ARGV do
  local mine = {}
  many = tonumber(ARGV[at + 3])
  for number = 1, many do
    mine[number] = limits[tonumber(ARGV[at + 3 + number])]
  end
  local base = #reply
  reply[base + 1], reply[base + 2], reply[base + 3], reply[base + 4], reply[base + 5] =
    answer(mine, ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]))
  at = at + 4 + many
end
return reply
