-- Renew the holds of one permit id, unless one of them has ended; or end them.
--
-- KEYS  1... holds, ZSETs as in concurrency.lua
-- ARGV  1 permit id   2... length of a hold of each, ms; none: the holds end
-- Reply of renewed holds 1; or 0: one had ended or was returned, and nothing was changed
--       or how many holds ended; other permits of that id stay taken
--
-- Idempotent.

-- @include limits_members.lua

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id, ends_of, ended = ARGV[1], {}, 0

for index, key in ipairs(KEYS) do
  ends_of[index] = redis.call('ZSCORE', key, id)
  if #ARGV > 1 and (not ends_of[index] or tonumber(ends_of[index]) <= now) then
    return 0
  end
end
for index, key in ipairs(KEYS) do
  local n = ends_of[index] and count_members(key, id) or 0
  if #ARGV > 1 then
    add_members(key, now + ARGV[1 + index], id, n)
    local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    redis.call('PEXPIRE', key, last[2] - now)
  elseif n > 0 then
    ended = ended + remove_members(key, id, n)
  end
end
return #ARGV > 1 and 1 or ended
