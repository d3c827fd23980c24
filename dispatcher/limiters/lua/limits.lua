-- Shared by the scripts of limiters: the time, and reading the limits of a call.
--
-- Included. The parts put one table per algorithm into kinds, with these functions:
--   read(index, at)          state of KEYS[index], whose words are the ARGV from at on; and where
--                            the words after them begin
--   wait(state, n, ahead)    ms until n permits are free, when other requests take ahead first
--   take(state, n, id)       take n permits, of which there is room
--   whole(state)             ms until nothing that was taken counts any more
--   back(state, n, id, at)   return n permits that were taken at that time, µs; how many it was
--   knows(state, id)         how many permits of that id count; only where members are ids
-- and with holds = true where permits end when they are returned.
-- A state has kind, index, count (the most it ever gives at once, 0: any number) and room: how many
-- permits it would give now.
-- Reading writes nothing. Numbers go to Redis as they are, and not as text, which costs more.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local kinds = {}

-- @parts

-- Read the limits of KEYS[first] and all after it, whose words begin at ARGV[at]: each has its kind,
-- and its words. Say where the next words begin. No limits when the calendar periods given
-- for one of them do not cover the present.
local function read_limits(at, first)
  local limits = {}
  for index = first, #KEYS do
    local state
    state, at = kinds[ARGV[at]].read(index, at + 1)
    if not state then
      return nil
    end
    limits[index - first + 1] = state
  end
  return limits, at
end
