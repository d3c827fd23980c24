-- Book another time for a message under a new member, judged as if its present one were not there. That
-- one stays: the row decides which of the two the message has (decision 0031).
--
-- KEYS  1 pending ZSET   2 epoch HASH   3... window ZSETs
-- ARGV  1 present member: message id (16 bytes) and the tail of its last move   2 new member
--       3 '' or a hold that hold.lua put at the time asked for, which needs no judging where it still
--       stands in every window
--       4 time asked for, ms   5 latest time, ms (= asked: that time or nothing)
--       6 {rule set of each window, blackouts} (rule.lua)
-- Reply {'closed'}, {'booked', at ms, id}, or 'refused', 'searching', 'unsure' as reserve.lua
--
-- Idempotent by new member. One that some window has lost, or has at a time that was not asked for,
-- counts for nothing, and all is judged anew.

-- @include rule.lua
-- @include clock.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'closed'}
end
local sets, blackouts = unpack(cmsgpack.unpack(ARGV[6]))
local windows = {unpack(KEYS, 3)}
local asked, latest, now = tonumber(ARGV[4]), tonumber(ARGV[5]), now_ms()
local at, reply = hold_in_all(windows, ARGV[2])
if not at or at < asked or at > latest then
  if ARGV[3] ~= '' and hold_in_all(windows, ARGV[3]) == asked then
    at = asked
    for _, window in ipairs(windows) do
      redis.call('ZREM', window, ARGV[3])
      redis.call('ZREM', KEYS[1], ARGV[3] .. window)
    end
  else
    at, reply = without(windows, {ARGV[1], ARGV[2], ARGV[3]}, function()
      return find_slot(windows, sets, blackouts, asked, latest)
    end)
    if not at then
      return reply
    end
  end
end
for _, window in ipairs(windows) do
  redis.call('ZADD', window, at, ARGV[2])
  redis.call('ZADD', KEYS[1], 'GT', now, ARGV[1] .. window, now, ARGV[2] .. window)
end
return {'booked', at, string.sub(ARGV[1], 1, 16)}
