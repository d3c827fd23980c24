-- The first time that fits every quota of a scope; books nothing.
--
-- KEYS  1 window ZSET   2 epoch HASH
-- ARGV  1 time to search from, ms   2... count and length in ms of each quota
-- Reply {'closed'}             the shard is not complete: rebuild first
--       {'slot', ms}
--       {'searching', from ms} too far for one call: ask again from there

-- @include rule.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'closed'}
end
local quotas, longest = quotas_from(2)
local slot, found = leap(KEYS[1], tonumber(ARGV[1]), quotas, longest)
return {found and 'slot' or 'searching', slot}
