-- The permits of the last while, so that a call that is repeated takes nothing twice.
--
-- Included. KEYS[1] and KEYS[2] are HASHes; field: permit id; value: when it was taken, µs after the
-- beginning of its span, and for several permits ':' and how many. Time is cut into spans, and each
-- span writes into the one and reads both: a permit is remembered for at least one span and at most
-- two. ARGV[1] is their length in ms, 0: remember nothing.

local span = tonumber(ARGV[1])
local turn = span > 0 and math.floor(now / span) or 0

-- How many permits were taken under that id, and when, in µs. The expiry of a hash says of
-- which span it is, which also holds where the clock was set back.
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
  local passed, n = string.match(value, '^(%d+):?(%d*)$')
  return tonumber(n) or 1, begin * 1000 + passed
end

-- A hash ends before its turn comes again. One that has not expired in the very millisecond of its
-- end must not be written into, since what is written would be gone with it.
local function remember(id, n)
  local key = KEYS[1 + turn % 2]
  local begun = redis.call('PTTL', key) > span / 2
  if not begun then
    redis.call('DEL', key)
  end
  local passed = now_us - turn * span * 1000
  redis.call('HSET', key, id, n == 1 and passed or passed .. ':' .. n)
  if not begun then
    redis.call('PEXPIREAT', key, (turn + 2) * span - 1)
  end
end
