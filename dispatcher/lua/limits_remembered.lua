-- The permits of the last while, so that a call that is repeated takes nothing twice.
--
-- Included. KEYS[1] and KEYS[2] are HASHes; field: permit id; value: 'permits:seconds:micros', when
-- they were taken. Time is cut into spans, and each span writes into the one and reads both: a
-- permit is remembered for at least one span and at most two. ARGV[1] is their length in ms, 0:
-- remember nothing.

local span = tonumber(ARGV[1])
local turn = span > 0 and math.floor(now / span) or 0

-- How many permits were taken under that id, and when, in µs.
local function remembered(id)
  local value = redis.call('HGET', KEYS[1 + turn % 2], id)
  value = value or redis.call('HGET', KEYS[2 - turn % 2], id)
  if not value then
    return 0
  end
  local n, seconds, micros = string.match(value, '^(%d+):(%d+):(%d+)$')
  return tonumber(n), seconds * 1000000 + micros
end

-- A hash ends before its turn comes again. One that has not expired in the very millisecond of its
-- end must not be written into, since what is written would be gone with it.
local function remember(id, n)
  local key = KEYS[1 + turn % 2]
  local begun = redis.call('PTTL', key) > span / 2
  if not begun then
    redis.call('DEL', key)
  end
  redis.call('HSET', key, id, n .. ':' .. time[1] .. ':' .. time[2])
  if not begun then
    redis.call('PEXPIREAT', key, (turn + 2) * span - 1)
  end
end
