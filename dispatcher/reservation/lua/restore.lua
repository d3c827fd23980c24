-- Put reservations that the store knows back into their windows, while the shard is being rebuilt.
--
-- KEYS  1 rebuild STRING   2 pending ZSET   3... window ZSETs
-- ARGV  1 marker   2 life of the marker, ms
--       3... of each window, its reservations in one word: send_at in ms (15 digits), then the
--       message id (16 bytes), of one after the other
-- Reply 1, or 0 when the marker is no longer the caller's; then nothing was written
--
-- They go to pending too: a message that is cancelled while this runs is found there. With the
-- first key alone it keeps the marker alive. Idempotent.

-- @include clock.lua

local DIGITS, WIDTH = 15, 31

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local now = string.format('%.0f', now_ms())
local entries = {}
for index = 3, #KEYS do
  local window, packed = KEYS[index], ARGV[index]
  local words = {}
  for start = 1, #packed, WIDTH do
    local member = string.sub(packed, start + DIGITS, start + WIDTH - 1)
    words[#words + 1] = string.sub(packed, start, start + DIGITS - 1)
    words[#words + 1] = member
    entries[#entries + 1] = now
    entries[#entries + 1] = member .. window
  end
  redis.call('ZADD', window, unpack(words))
end
if entries[1] then
  redis.call('ZADD', KEYS[2], 'NX', unpack(entries))
end
return 1
