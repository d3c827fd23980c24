-- Shared by the scripts of limiters: the time, the limits of a call, and remembered permits.
--
-- Included. The parts put one table per algorithm into kinds, with these functions:
--   read(key, count, ...)    its state, by its words
--   wait(state, n, ahead)    ms until n permits are free, when other requests take ahead first
--   take(state, n, id)       take n permits, of which there is room
--   whole(state)             ms until nothing that was taken counts any more
--   back(state, n, id, at)   return n permits that were taken at that time, µs; how many it was
--   knows(state, id)         how many permits of that id count; only where members are ids
-- and with words, how many it has, and holds = true where permits end when they are returned.
-- A state has kind, key, count (the most it ever gives at once, 0: any number), room: how many
-- permits it would give now, and free: how many of them are for the requests of this call.
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
    local kind, key, count = kinds[ARGV[at]], KEYS[index], tonumber(ARGV[at + 1])
    local state = kind.read(key, count, ARGV[at + 2], ARGV[at + 3])
    if not state then
      return nil
    end
    state.kind, state.key, state.count = kind, key, kind.words > 0 and count or 0
    state.free = state.room
    limits[index - first + 1] = state
    at = at + 1 + kind.words
  end
  return limits, at
end

-- The permits of the last while are remembered, so that a call that is repeated takes nothing twice.
-- KEYS[1] and KEYS[2] are HASHes; field: permit id; value: µs from the beginning of its span until
-- it was taken; then ':' and how many, if there are several or it is of some limits only; then ':'
-- and which limits (",1,3,"), if not all. Time is cut into spans, and each span writes into the one and
-- reads both: a permit is remembered for at least one span and at most two. ARGV[1] is their length
-- in ms, 0: remember nothing.
local span = tonumber(ARGV[1])
local turn = span > 0 and math.floor(now / span) or 0

-- How many permits were taken under that id, when, in µs, and of which limits ('': of all). The
-- expiry of a hash says of which span it is, which also holds where the clock was set back.
local function remembered(id)
  local key = KEYS[1 + turn % 2]
  local value = redis.call('HGET', key, id)
  if not value then
    key = KEYS[2 - turn % 2]
    value = redis.call('HGET', key, id)
  end
  if not value then
    return 0
  end
  local begin = (math.floor((now + redis.call('PTTL', key)) / span + 0.5) - 2) * span
  local passed, n, of = string.match(value, '^(%d+):?(%d*):?([%d,]*)$')
  return tonumber(n) or 1, begin * 1000 + passed, of
end

-- A hash ends before its turn comes again. One that has not expired in the very millisecond of its
-- end must not be written into, since what is written would be gone with it.
local function remember(id, n, of)
  local key = KEYS[1 + turn % 2]
  local begun = redis.call('PTTL', key) > span / 2
  if not begun then
    redis.call('DEL', key)
  end
  local passed = now_us - turn * span * 1000
  local value = of and passed .. ':' .. n .. ':' .. of or n > 1 and passed .. ':' .. n or passed
  redis.call('HSET', key, id, value)
  if not begun then
    redis.call('PEXPIREAT', key, (turn + 2) * span - 1)
  end
end
