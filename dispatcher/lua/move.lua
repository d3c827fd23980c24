-- Judge another time for a message that has a place, as if that place were free, and hold it. The
-- old place stays taken until take.lua, when the store has the new time.
--
-- KEYS  1 pending ZSET   2 epoch HASH   3... window ZSETs
-- ARGV  1 message id, 16 bytes   2 hold: message id, then a token without "{"
--       3 time asked for, ms   4 latest time, ms (= asked: that time or nothing)
--       5... judge table (rule.lua), one rule set for each window and one sky
-- Reply {'closed'}, {'held', at ms}, or 'refused', 'searching', 'unsure' as reserve.lua
--
-- Idempotent by hold. One that some window has lost counts for nothing, and all is judged anew.

-- @include rule.lua
-- @include booking.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'closed'}
end
local sets, skies = judge_table(5)
local windows = {unpack(KEYS, 3)}
local at = hold_in_all(windows, ARGV[2])
if at then
  return {'held', at}
end
local found, reply = without(windows, {ARGV[1], ARGV[2]}, function()
  return find_place(windows, sets, skies[1], tonumber(ARGV[3]), tonumber(ARGV[4]))
end)
if not found then
  return reply
end
local now = now_ms()
for _, window in ipairs(windows) do
  redis.call('ZADD', window, found, ARGV[2])
  redis.call('ZADD', KEYS[1], now, ARGV[2] .. window)
end
return {'held', found}
