-- Set a key aside that stands under a name of ours and was not written by us, and close its shard,
-- in one step: nothing is booked until the windows are rebuilt from the store. Or only look.
--
-- KEYS  1 window or pending ZSET   2 epoch HASH   3 name under which it is kept
-- ARGV  1 'window' or 'pending'   2 most members to look at from each end
--       3 'set_aside', or 'look' to write nothing
-- Reply 1 when it is not ours, 0 when it is, or there is none; then nothing was written
--
-- Idempotent. The member of a window begins with a message id of 16 bytes, and that of a pending
-- has the name of a window behind it. Members in the midst of a long window are not looked at.

local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then
  return 0
end
local foreign = kind ~= 'zset'
if not foreign then
  for _, command in ipairs({'ZRANGE', 'ZREVRANGE'}) do
    for _, member in ipairs(redis.call(command, KEYS[1], 0, ARGV[2] - 1)) do
      foreign = foreign or #member < 16
        or (ARGV[1] == 'pending' and not string.find(member, '{', 17, true))
    end
  end
end
if not foreign then
  return 0
end
if ARGV[3] == 'look' then
  return 1
end
redis.call('DEL', KEYS[2])
redis.call('RENAME', KEYS[1], KEYS[3])
return 1
