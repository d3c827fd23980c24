-- Judge a send time against every quota of a scope and book it, or the next slot, in one step.
--
-- KEYS  1 window ZSET   2 pending ZSET   3 epoch HASH
--       4 twins HASH (only for a submit with an idempotency key)
-- ARGV  1 message id, 16 bytes
--       2 time asked for, ms           3 time to search from, ms (>= 2)
--       4 latest time to book, ms (= 2: book that time or nothing)
--       5 fingerprint, 6 token of this submit, 7 life of the twins HASH in ms ('' without key)
--       8 the longest of the lengths, ms   9 the least of the counts
--       10... count and length in ms of each quota
-- Reply {'closed'}                                  the shard is not complete: rebuild first
--       {'booked', at ms, id}                       id is the twin's when one was there first
--       {'refused', slot ms, quota, id, id, ...}    quota is its 1-based place in ARGV
--       {'searching', from ms, quota, id, ...}      too far for one call: ask again from there
--       {'conflict', id}                            the key is in use for another fingerprint
--
-- Idempotent by message id: called again, it answers with what is booked. A window that is booked
-- in never expires by itself; tidy.lua sets the expiry anew once the store has the message.

-- @include rule.lua

local window, twins = KEYS[1], KEYS[4]
local id = ARGV[1]

if redis.call('EXISTS', KEYS[3]) == 0 then
  return {'closed'}
end

if twins then
  local first = redis.call('HMGET', twins, 'id', 'fingerprint')
  if first[1] then
    if first[2] ~= ARGV[5] then
      return {'conflict', first[1]}
    end
    id = first[1]
  end
end

local at = tonumber(redis.call('ZSCORE', window, id))
if not at then
  at = tonumber(ARGV[2])
  -- Most scopes are empty around most times; then no quota needs a closer look.
  if near(window, at, ARGV[8]) >= tonumber(ARGV[9]) then
    local quotas, longest = quotas_from(10)
    local furthest, quota, run = judge(window, at, quotas, longest)
    if quota then
      local from, latest = tonumber(ARGV[3]), tonumber(ARGV[4])
      local slot, found = leap(window, math.max(furthest, from), quotas, longest)
      if not found then
        return {'searching', slot, quota, unpack(run)}
      end
      if slot > latest then
        return {'refused', slot, quota, unpack(run)}
      end
      at = slot
    end
  end
  redis.call('ZADD', window, at, id)
  redis.call('PERSIST', window)
end
-- Also when it was booked before: who asks now has yet to store the message.
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000), id .. window)

if twins then
  redis.call('HSET', twins, 'id', id, 'fingerprint', ARGV[5], 'by:' .. ARGV[6], 1)
  redis.call('PEXPIRE', twins, ARGV[7])
end
return {'booked', at, id}
