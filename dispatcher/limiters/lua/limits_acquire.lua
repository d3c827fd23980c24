-- Take permits for requests, in order; each from several limits, from all of them or from none.
--
-- KEYS  1, 2 remembered permits, HASHes   3... state of each limit
-- ARGV  1 span for which permits are remembered, ms   2... per limit: kind, words
--       then, of a single request for all limits: permit id; 0 if it may have been used before, 1 if
--       not, 2 to take nothing; permits wanted, 0 or more; the least that is of use
--       or, of a group, per limit: permits for which earlier scripts of the group refused requests;
--       how many it may still give to the group at most, -1: any number; then per request the four
--       words as above, its limits among those of the set (",1,3,"; "": all), how many limits, and
--       which: 1 for that of KEYS[3]
-- Reply {now}   the calendar periods of a limit do not cover the present
--       or now, ms, and per request: permits granted; wait in ms until the least that is of use is
--       free, when those refused before it go first, 0: it is allowed, -1: never; which of its limits
--       decides, from 1: the one it waits for, or the one with the least room; permits left there; ms
--       until nothing that was taken there counts any more; how many of its limits refused, and of
--       each: which, and the wait there, as above
--       then, of a group, per limit: how many it may still give to the group, -1: any number
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

-- Take permits of which there is room; say how many are left, and when none counts any more.
local function take(mine, id, n, index, room)
  for number = 1, #mine do
    local limit = mine[number]
    limit.kind.take(limit, n, id)
    limit.free = limit.free - n
  end
  if span > 0 then
    remember(id, n, mine.of)
  end
  local decides = mine[index]
  return room < math.huge and room - n or 0, decides and decides.kind.whole(decides) or 0
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
      limit.kind.take(limit, n, id)
      limit.free = limit.free - n
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

-- Take what a request wants, whose words begin at ARGV[at], and append what the reply says of it.
local function answer(reply, mine, at)
  local id, wanted, least = ARGV[at], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local index, room = tightest(mine)
  local granted = ARGV[at + 1] == '0' and wanted > 0 and taken_before(mine, id) or 0
  local refusals, wait, left, whole = {}, 0, nil, nil
  if granted == 0 and wanted > 0 and room >= least and ARGV[at + 1] ~= '2' then
    granted = math.min(wanted, room)
    left, whole = take(mine, id, granted, index, room)
  else
    if granted == 0 and wanted > 0 and room < least then
      refusals, wait, index = refusing(mine, least, false)
    elseif granted > 0 and not hold_again(mine, id, granted) then
      refusals, wait, index = refusing(mine, granted, true)
      granted = 0
    elseif granted > 0 then
      index = tightest(mine)
    end
    local decides = mine[index]
    left = decides and decides.room < math.huge and math.max(0, decides.room) or 0
    whole = decides and decides.kind.whole(decides) or 0
  end
  local base = #reply
  reply[base + 1], reply[base + 2], reply[base + 3], reply[base + 4], reply[base + 5] =
    granted, wait, index, left, whole
  reply[base + 6] = #refusals / 2
  for number = 1, #refusals do
    reply[base + 6 + number] = refusals[number]
  end
end

local reply = {now}
if #ARGV == at + 3 then
  answer(reply, limits, at)
  return reply
end

for number = 1, #limits do
  local limit, cap = limits[number], tonumber(ARGV[at + 1])
  limit.ahead = tonumber(ARGV[at])
  limit.free = cap >= 0 and math.min(limit.room, cap) or limit.room
  at = at + 2
end
while at <= #ARGV do
  local mine, many = {}, tonumber(ARGV[at + 5])
  for number = 1, many do
    mine[number] = limits[tonumber(ARGV[at + 5 + number])]
  end
  mine.of = ARGV[at + 4] ~= '' and ARGV[at + 4] or nil
  answer(reply, mine, at)
  at = at + 6 + many
end
for number = 1, #limits do
  local left = limits[number].free
  reply[#reply + 1] = left < math.huge and math.max(0, left) or -1
end
return reply
