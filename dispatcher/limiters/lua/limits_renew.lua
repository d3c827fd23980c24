-- Renew the holds of one permit id, unless one of them has ended.
--
-- KEYS  1... holds, ZSETs as in concurrency.lua
-- ARGV  1 permit id   2... length of a hold of each, ms
-- Reply 1 all were renewed   0 one had ended or was returned; nothing was changed
--
-- Idempotent.

-- @include limits_members.lua

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = ARGV[1]

for _, key in ipairs(KEYS) do
  local ends = redis.call('ZSCORE', key, id)
  if not ends or tonumber(ends) <= now then
    return 0
  end
end
for index, key in ipairs(KEYS) do
  local n = count_members(key, redis.call('ZSCORE', key, id), id)
  add_members(key, now + ARGV[1 + index], id, n)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  redis.call('PEXPIRE', key, last[2] - now)
end
return 1
