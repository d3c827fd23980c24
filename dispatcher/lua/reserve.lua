-- Judge a send time against every quota of a scope and book it, or the next slot, in one step.
--
-- KEYS  1 window ZSET   2 pending ZSET   3 epoch HASH
--       4 twins HASH (only for a submit with an idempotency key)
-- ARGV  1 message id, 16 bytes
--       2 time asked for, ms           3 time to search from, ms (>= 2)
--       4 latest time to book, ms (= 2: book that time or nothing)
--       5 length to keep a member after its time, ms
--       6 fingerprint, 7 token of this submit, 8 life of the twins HASH in ms ('' without key)
--       9... count and length in ms of each quota
-- Reply {'closed'}                                  the shard is not complete: rebuild first
--       {'booked', at ms, id}                       id is the twin's when one was there first
--       {'refused', slot ms, quota, id, id, ...}    quota is its 1-based place in ARGV
--       {'searching', from ms, quota, id, ...}      too far for one call: ask again from there
--       {'conflict', id}                            the key is in use for another fingerprint
--
-- Idempotent by message id: called again, it answers with what is booked.

-- @include rule.lua

local window, pending, epoch, twins = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, asked, from, latest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('EXISTS', epoch) == 0 then
  return {'closed'}
end

if twins then
  local first = redis.call('HMGET', twins, 'id', 'fingerprint')
  if first[1] then
    if first[2] ~= ARGV[6] then
      return {'conflict', first[1]}
    end
    id = first[1]
  end
end

local at = tonumber(redis.call('ZSCORE', window, id))
if not at then
  local quotas = quotas_from(9)
  local quota, run = first_block(window, asked, quotas)
  at = asked
  if quota or from > asked then
    local slot, found = leap(window, from, quotas)
    if not found and (latest == asked or slot <= latest) then
      return {'searching', slot, quota or 0, unpack(run or {})}
    end
    if slot > latest then
      return {'refused', slot, quota or 0, unpack(run or {})}
    end
    at = slot
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local is_last = redis.call('ZCOUNT', window, '(' .. exact(at), '+inf') == 0
  redis.call('ZADD', window, exact(at), id)
  redis.call('ZADD', pending, exact(now), id .. window)
  if is_last then
    redis.call('PEXPIREAT', window, exact(at + ARGV[5]))
    redis.call('ZREMRANGEBYSCORE', window, '-inf', exact(now - ARGV[5]))
  end
end

if twins then
  redis.call('HSET', twins, 'id', id, 'fingerprint', ARGV[6], 'by:' .. ARGV[7], 1)
  redis.call('PEXPIRE', twins, ARGV[8])
end
return {'booked', at, id}
