-- Judge another time for a message, as if its reservation were free, and hold it. The reservation
-- stays until take.lua, when the store has the new time.
--
-- KEYS  1 pending ZSET   2 epoch HASH   3... window ZSETs
-- ARGV  1 message id, 16 bytes   2 hold: message id, then a token without "{"
--       3 another hold of the message that counts as free, or ''
--       4 time asked for, ms   5 latest time, ms (= asked: that time or nothing)
--       6 {rule set of each window, blackouts} (rule.lua)
-- Reply {'closed'}, {'held', at ms, present ms}, or 'refused', 'searching', 'unsure' as reserve.lua
--
-- Idempotent by hold. One that some window has lost, or has at a time that was not asked for, counts
-- for nothing, and all is judged anew.

-- @include rule.lua
-- @include clock.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'closed'}
end
local sets, blackouts = unpack(cmsgpack.unpack(ARGV[6]))
local windows = {unpack(KEYS, 3)}
local asked, latest, now = tonumber(ARGV[4]), tonumber(ARGV[5]), now_ms()
local at = hold_in_all(windows, ARGV[2])
if at and at >= asked and at <= latest then
  return {'held', at, now}
end
local found, reply = without(windows, {ARGV[1], ARGV[2], ARGV[3]}, function()
  return find_slot(windows, sets, blackouts, asked, latest)
end)
if not found then
  return reply
end
for _, window in ipairs(windows) do
  redis.call('ZADD', window, found, ARGV[2])
  redis.call('ZADD', KEYS[1], now, ARGV[2] .. window)
end
return {'held', found, now}
