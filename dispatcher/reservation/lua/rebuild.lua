-- The steps of a rebuild of one part: a shard of the windows or of the permit logs. 'begin' marks a part
-- that is closed; 'close' closes it first, so that no other rebuild can begin in between; 'wipe'
-- deletes what is left of it; 'restore' puts reservations that the store knows back into their
-- windows, and without windows keeps the marker alive; 'open' declares the part complete.
--
-- KEYS  1 rebuild STRING: the marker   2 epoch HASH
--       3... wipe: keys to delete
--       3 pending ZSET   4... window ZSETs: restore
-- ARGV  1 step   2 marker: identity of the server process, then a random token   3 its life, ms
--       4... restore: of each window the number of words that follow: send_at in ms and member of each
--       of its reservations
--       4 identity of the server process   5 number of shards   6... name and length in ms of each
--       reach, how far back the part is complete: open
-- Reply 1, or 0 and nothing was written: the marker is not, or no longer, the caller's; begin: or the
--       part is complete; wipe: or it is being filled already
--
-- Idempotent by marker. 'restore' adds a '+' to it, so that a copy of a 'wipe' that arrives late does
-- not delete what was filled in since; the epoch keeps the marker of the rebuild that made it. What is
-- restored goes to pending, too: a message that is cancelled while this runs is found there.

-- @include clock.lua

local step, marker, life = ARGV[1], ARGV[2], ARGV[3]
local held = redis.call('GET', KEYS[1])

if step == 'begin' or step == 'close' then
  local is_complete = redis.call('EXISTS', KEYS[2]) == 1
  if (held and held ~= marker) or (step == 'begin' and is_complete) then
    return 0
  end
  redis.call('SET', KEYS[1], marker, 'PX', life)  -- first: a full server refuses the first write only
  redis.call('DEL', KEYS[2])
  return 1
end

if step == 'open' and redis.call('HGET', KEYS[2], 'marker') == marker then
  return 1
end
if held ~= marker and (held ~= marker .. '+' or step == 'wipe') then
  return 0
end

if step == 'wipe' then
  redis.call('PEXPIRE', KEYS[1], life)
  for index = 3, #KEYS do
    redis.call('UNLINK', KEYS[index])
  end
elseif step == 'restore' then
  redis.call('SET', KEYS[1], marker .. '+', 'PX', life)
  local now, entries, position = string.format('%.0f', now_ms()), {}, 4
  for index = 4, #KEYS do
    local last = position + tonumber(ARGV[position])
    redis.call('ZADD', KEYS[index], unpack(ARGV, position + 1, last))
    for member = position + 2, last, 2 do
      entries[#entries + 1] = now
      entries[#entries + 1] = ARGV[member] .. KEYS[index]
    end
    position = last + 1
  end
  if entries[1] then
    redis.call('ZADD', KEYS[3], 'NX', unpack(entries))
  end
else
  redis.call('HSET', KEYS[2], 'server', ARGV[4], 'shards', ARGV[5], 'marker', marker,
    'opened_at_ms', now_ms())
  for position = 6, #ARGV, 2 do
    redis.call('HSET', KEYS[2], 'reach:' .. ARGV[position], ARGV[position + 1])
  end
  redis.call('DEL', KEYS[1])
end
return 1
