-- Put reservations that the store knows back into their windows, while the shard is being rebuilt.
--
-- KEYS  1 rebuild STRING   2 pending ZSET   3... window ZSETs
-- ARGV  1 marker   2 life of the marker, ms
--       3... of each reservation: place of its window among the windows, send_at in ms, message id
-- Reply 1, or 0 when the marker is no longer the caller's; then nothing was written
--
-- They go to pending too: a message that is cancelled while this runs is found there.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = {}
for position = 3, #ARGV, 3 do
  local window = KEYS[2 + ARGV[position]]
  local member = ARGV[position + 2]
  redis.call('ZADD', window, ARGV[position + 1], member)
  entries[#entries + 1] = now
  entries[#entries + 1] = member .. window
end
redis.call('ZADD', KEYS[2], 'NX', unpack(entries))
return 1
