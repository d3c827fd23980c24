-- Put permits that the store knows back into a log, while the logs are being rebuilt.
--
-- KEYS  1 rebuild STRING   2 log ZSET
-- ARGV  1 marker   2 life of the marker, ms   3 length of the longest limit, ms
--       4... age in ms (negative: how long it may still be used) and permit id of each permit
-- Reply 1, or 0 when the marker is no longer the caller's; then nothing was written

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local time = redis.call('TIME')
-- Rounded up: a hand-over must not count from earlier than it was.
local now = time[1] * 1000 + math.floor(time[2] / 1000) + 1
for position = 4, #ARGV, 2 do
  local age = tonumber(ARGV[position])
  -- The store knows the claim, not whether it has a permit yet: it counts, half a ms apart from
  -- those that were granted, and take_permits.lua judges it when it is asked for.
  redis.call('ZADD', KEYS[2], now - age + (age < 0 and 0.5 or 0), ARGV[position + 1])
end
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[2], math.ceil(last[2] + ARGV[3]))
return 1
