-- Settle what is pending of a message in one window: make the window agree with the store, or release
-- what the store does not know to be needed; unless it was asked for again since.
--
-- KEYS  1 window ZSET   2 pending ZSET   3 moved HASH of the message (take.lua)
-- ARGV  1 member that is pending: the message id, or a hold of the message
--       2 message id, 16 bytes
--       3 its send_at in the store, ms; '': by the store it needs no reservation
--       4 time up to which the entry in pending counts, ms
--       5 token that the store has with that time   6 life of the HASH, ms
-- Reply 1 when the window had another time for the message, or none; else 0
--
-- Idempotent. A hold that was not taken ends here: its time is the message's or free, and the store
-- no longer accepts the time that this hold is for. Where the window has seen a later move since the
-- store was read, only the hold goes.

local is_hold = ARGV[1] ~= ARGV[2]
local reserved = redis.call('ZSCORE', KEYS[2], ARGV[1] .. KEYS[1])
if not reserved or tonumber(reserved) > tonumber(ARGV[4]) then
  return 0
end
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1] .. KEYS[1])
  return 0
end
local own = redis.call('ZSCORE', KEYS[2], ARGV[2] .. KEYS[1])
if own and tonumber(own) > tonumber(ARGV[4]) then
  return 0
end
local is_old = tonumber(redis.call('HGET', KEYS[3], KEYS[1]) or -1) > tonumber(ARGV[5])
if is_old and not is_hold then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1] .. KEYS[1])
if is_hold then
  redis.call('ZREM', KEYS[1], ARGV[1])
  if not is_old then
    redis.call('HSET', KEYS[3], KEYS[1], ARGV[5])
    redis.call('PEXPIRE', KEYS[3], ARGV[6])
  end
end
local at = redis.call('ZSCORE', KEYS[1], ARGV[2])
if is_old or (at and tonumber(at) == tonumber(ARGV[3])) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
return 1
