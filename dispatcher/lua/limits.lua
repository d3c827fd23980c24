-- What the scripts of limiters share: the time, and reading the limits of a call.
--
-- Included. The parts put one table per algorithm into kinds, with these functions:
--   read(place, at, words)   state of KEYS[place]; its words are the ARGV from at on
--   wait(state, n, ahead)    ms until n permits are free, when others take ahead first
--   take(state, n, id)       take n permits, of which there is room
--   whole(state)             ms until nothing that was taken counts any more
--   back(state, n, id, at)   give back n permits that were taken at that time, µs; how many it was
--   knows(state, id)         how many permits of that id count; only where members are ids
-- and with holds = true where permits end when they are given back.
-- A state has kind, place, count (the limit) and room: how many permits it would give now.
-- Reading writes nothing. Numbers go to Redis as they are, and not as text, which costs more.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local kinds = {}

-- @parts

-- Read the limits whose words begin at ARGV[at], and say where the next words begin. Each has its
-- kind, how many words follow, and the words; the first is at KEYS[first]. No limits when one of
-- them was told of calendar periods that do not cover the present.
local function read_limits(at, many, first)
  local limits = {}
  for number = 1, many do
    local kind, words = kinds[ARGV[at]], tonumber(ARGV[at + 1])
    local state = kind.read(first + number - 1, at + 2, words)
    if not state then
      return nil
    end
    limits[number] = state
    at = at + 2 + words
  end
  return limits, at
end
