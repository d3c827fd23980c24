-- Tell at which times members stand in windows, and since when each is pending. Changes nothing.
--
-- KEYS  1 pending ZSET   2... window ZSETs
-- ARGV  1... of each member: index of its window among the windows, member
-- Reply of each member, in order: its time in ms, since when it is pending in ms; nil for none

local function ms(score)
  return score and tonumber(score)
end

local found = {}
for position = 1, #ARGV, 2 do
  local window = KEYS[1 + ARGV[position]]
  local member = ARGV[position + 1]
  found[#found + 1] = ms(redis.call('ZSCORE', window, member))
  found[#found + 1] = ms(redis.call('ZSCORE', KEYS[1], member .. window))
end
return found
