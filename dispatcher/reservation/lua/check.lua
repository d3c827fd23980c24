-- Judge one time in bounded steps, where one call does not suffice: long quotas that are full but
-- for single gaps. Quiet hours are not judged.
--
-- KEYS  1 pending ZSET   2 epoch HASH   3... window ZSETs
-- ARGV  1 time, ms   2 member of the message
--       3 hold of that message ('': none): its id (16 bytes), then a token without "{"
--       4, 5, 6 index of the scope and of the quota and time to go on from (0, 0, 0 at first)
--       7 {rule set of each window, blackouts} (rule.lua)
-- Reply {'closed'}                                      the shard is not complete: rebuild first
--       {'fits'}
--       {'blocked', until ms, scope, quota, id, id, ...}
--       {'checking', scope, quota, ms}                  ask again with these
--
-- The first call puts the hold. While it stands at the time, bookings nearby count it, so that what one
-- call found to fit still fits in the next. The message's own members are left out of the judgement.
-- A hold that is neither taken nor released is settled by reconcile like a reservation.

-- @include rule.lua
-- @include clock.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'closed'}
end
local sets = unpack(cmsgpack.unpack(ARGV[7]))
local windows = {unpack(KEYS, 3)}
local resume
if ARGV[4] ~= '0' then
  resume = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
elseif ARGV[3] ~= '' then
  for _, window in ipairs(windows) do
    redis.call('ZADD', window, ARGV[1], ARGV[3])
    redis.call('ZADD', KEYS[1], now_ms(), ARGV[3] .. window)
  end
end
local t = tonumber(ARGV[1])
local furthest, by = without(windows, {ARGV[2], ARGV[3]}, function()
  local until_ms, by = judge(windows, sets, t, resume)
  if until_ms and by then
    by[3] = by[3]()
  end
  return until_ms, by
end)
if not furthest then
  return {'checking', unpack(by)}
end
if by then
  return {'blocked', furthest, by[1], by[2], unpack(by[3])}
end
return {'fits'}
