-- Put permits that the store knows back into their logs, while the logs are being rebuilt.
--
-- KEYS  1 rebuild STRING   2... per permit and log: the log, a ZSET of permits
-- ARGV  1 marker   2 life of the marker, ms
--       3... of each: age in ms (negative: how long it may still be used), length of the longest
--       limit of its log in ms, permit id
-- Reply 1, or 0 when the marker is no longer the caller's; then nothing was written
--
-- The marker gets a '+': from now on rebuild.lua wipes nothing.

local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] and marker ~= ARGV[1] .. '+' then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. '+', 'PX', ARGV[2])
local time = redis.call('TIME')
-- Rounded up: a send must not count from earlier than it was.
local now = time[1] * 1000 + math.floor(time[2] / 1000) + 1
local logs = {}
for index = 2, #KEYS do
  local age, id = tonumber(ARGV[3 * index - 3]), ARGV[3 * index - 1]
  -- The store knows the claim, not whether it has a permit yet: it counts, with half a ms to mark
  -- it, and take_permits.lua judges it when it is requested.
  redis.call('ZADD', KEYS[index], now - age + (age < 0 and 0.5 or 0), id)
  logs[KEYS[index]] = ARGV[3 * index - 2]
end
for log, length in pairs(logs) do
  local latest = redis.call('ZRANGE', log, -1, -1, 'WITHSCORES')
  redis.call('PEXPIREAT', log, math.ceil(latest[2] + length))
end
return 1
