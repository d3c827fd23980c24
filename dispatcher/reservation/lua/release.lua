-- Release a reservation, one of the two of a move, or a hold.
--
-- KEYS  1 pending ZSET
--       2 duplicates HASH (only for the submit of a message with an idempotency key)
--       then window ZSETs
-- ARGV  1 member: message id (16 bytes) and the tail of its last move, or a hold
--       2 token of the submit that gives up ('': there is no duplicates HASH; '*': all give up,
--       because the message is not stored any more)
-- Reply 1 when it is released or was not there, 0 when another submit still relies on it
--
-- Idempotent. With a duplicates HASH only the last submit under way releases the reservation; when
-- the HASH has expired this is unknown, so it stays, and reconcile decides from the store.

local first = 2
if ARGV[2] == '*' then
  first = 3
  if redis.call('HGET', KEYS[2], 'id') == ARGV[1] then
    redis.call('DEL', KEYS[2])
  end
elseif ARGV[2] ~= '' then
  first = 3
  local held = redis.call('HDEL', KEYS[2], 'by:' .. ARGV[2]) == 1
  local others = redis.call('HLEN', KEYS[2]) - 2  -- beside id and fingerprint
  if held and others > 0 then
    return 0
  end
  if not held then
    for index = first, #KEYS do
      if redis.call('ZSCORE', KEYS[index], ARGV[1]) then
        return 0
      end
    end
    return 1  -- released before: only the reply was lost
  end
  redis.call('DEL', KEYS[2])
end
for index = first, #KEYS do
  redis.call('ZREM', KEYS[index], ARGV[1])
  redis.call('ZREM', KEYS[1], ARGV[1] .. KEYS[index])
end
return 1
