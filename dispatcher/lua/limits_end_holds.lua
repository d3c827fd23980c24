-- End the holds of one permit id; what else it took stays taken.
--
-- KEYS  1... holds, ZSETs as in concurrency.lua
-- ARGV  1 permit id
-- Reply how many holds ended
--
-- Idempotent.

local ended = 0
for _, key in ipairs(KEYS) do
  local number, member = 1, ARGV[1]
  while redis.call('ZREM', key, member) == 1 do
    ended = ended + 1
    number = number + 1
    member = ARGV[1] .. '\0' .. number
  end
end
return ended
