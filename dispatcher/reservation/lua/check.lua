-- Judge one time in bounded steps, where one call does not suffice: long quotas that are full but
-- for single gaps. Quiet hours are not judged.
--
-- KEYS  1 epoch HASH   2... window ZSETs
-- ARGV  1 time, ms   2 member of the message   3 hold of that message ('': none)
--       4, 5, 6 index of the scope and of the quota and time to go on from (0, 0, 0 at first)
--       7 {rule set of each window, blackouts} (rule.lua)
-- Reply {'closed'}                                      the shard is not complete: rebuild first
--       {'fits'}
--       {'blocked', until ms, scope, quota, id, id, ...}
--       {'checking', scope, quota, ms}                  ask again with these
--
-- While a hold stands at the time, bookings nearby count it, so that what one call found to
-- fit still fits in the next. The message's own members are left out of the judgement.

-- @include rule.lua

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'closed'}
end
local sets = unpack(cmsgpack.unpack(ARGV[7]))
local windows = {unpack(KEYS, 2)}
local resume
if ARGV[4] ~= '0' then
  resume = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
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
