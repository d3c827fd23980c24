-- Delete members of a window that no quota can count any more; a window without members is gone.
-- How far back members count is what the epoch promises, which may be further than this caller's
-- quotas need: others may have longer ones.
--
-- KEYS  1 window ZSET   2 epoch HASH
-- ARGV  1 how much longer than that a member is kept, ms
--       2 name of the epoch's field that says how far back
--       3 most members to delete in one call
-- Reply how many members were deleted; 0 when the shard is not complete
--
-- Idempotent.

-- @include clock.lua

local reach = redis.call('HGET', KEYS[2], ARGV[2])
if not reach then
  return 0
end
local old = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. now_ms() - reach - ARGV[1])
local most = math.min(old, tonumber(ARGV[3]))
if most > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, most - 1)
end
return most
