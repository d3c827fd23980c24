-- End the holds of one permit id; its other permits stay taken.
--
-- KEYS  1... holds, ZSETs as in concurrency.lua
-- ARGV  1 permit id
-- Reply how many holds ended
--
-- Idempotent.

-- @include limits_members.lua

local ended = 0
for _, key in ipairs(KEYS) do
  local ends = redis.call('ZSCORE', key, ARGV[1])
  if ends then
    ended = ended + remove_members(key, ARGV[1], count_members(key, ends, ARGV[1]))
  end
end
return ended
