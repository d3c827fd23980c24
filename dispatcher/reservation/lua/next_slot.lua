-- Find the first time that fits every quota of some scopes, as if one message had no reservation
-- there. Books nothing.
--
-- KEYS  1 epoch HASH   2... window ZSETs
-- ARGV  1 time to search from, ms   2 member of that message ('' for none)
--       3 {rule set of each window, blackouts} (rule.lua)
-- Reply {'closed'}             the shard is not complete: rebuild first
--       {'slot', ms}
--       {'searching', from ms} too far for one call: ask again from there
--       {'unsure', at ms}      judging that time takes more than one call

-- @include rule.lua

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'closed'}
end
local sets, blackouts = unpack(cmsgpack.unpack(ARGV[3]))
local windows = {unpack(KEYS, 2)}
local slot, found = without(windows, {ARGV[2]}, function()
  return leap(windows, sets, blackouts, tonumber(ARGV[1]))
end)
if found == 'fits' then
  return {'slot', slot}
end
return {found == 'more' and 'searching' or 'unsure', slot}
