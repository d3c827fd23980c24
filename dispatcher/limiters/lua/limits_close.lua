-- Close cool-downs until some time; one that is closed for longer stays so.
--
-- KEYS  1... cool-downs, STRINGs of the time until which they are closed, ms
-- ARGV  1 for how long from now, ms, or 0   2 until when, ms, or 0: the later one holds
-- Reply until when they are closed, ms: the latest of them
--
-- Idempotent, but for the time that passes between two calls.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local closed = math.max(now + ARGV[1], tonumber(ARGV[2]))
local latest = 0

for _, key in ipairs(KEYS) do
  local ends = math.max(closed, tonumber(redis.call('GET', key) or 0))
  if ends > now then
    redis.call('SET', key, string.format('%.0f', ends), 'PX', ends - now)
  end
  latest = math.max(latest, ends)
end
return latest
