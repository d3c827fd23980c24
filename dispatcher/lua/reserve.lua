-- Judge send times against every quota of their scopes and book them, or the next slots, in one
-- step: one message after another, each seeing those before it.
--
-- KEYS  1 pending ZSET   2 epoch HASH
--       3... of each message: its twins HASH (only with an idempotency key), its window ZSETs
-- ARGV  1 how far ahead of now the pending time is set, ms
--       2 life of the twins HASHes, ms
--       3... judge table (rule.lua), then of each message:
--       id (16 bytes), time asked for in ms,
--       latest time to book in ms (= asked: book that time or nothing),
--       hold ('' or a member that hold.lua put at the time asked for, which needs no judging),
--       fingerprint ('' without idempotency key), token of this submit,
--       place of its sky, number of its windows, place of the rule set of each
-- Reply a list of one reply for each message, in order:
--       {'booked', at ms, id}                              id is the twin's when one was there first
--       {'refused', slot ms, scope, quota, id, id, ...}    1-based places; 0, 0: quiet hours
--       {'searching', from ms, scope, quota, id, ...}      too far for one call: ask again from there
--       {'unsure', at ms}                                  judging that time takes more than one call
--       {'conflict', id}                                   the key is in use for another fingerprint
--       Ends early with {'closed'} when the shard is not complete: rebuild first; and after a
--       'searching' or an 'unsure', because what follows must not overtake that message.
--
-- Idempotent by message id: called again, it answers with what is booked. A window that is booked
-- in never expires by itself; tidy.lua sets the expiry anew once the store has the message.

-- @include rule.lua
-- @include booking.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {{'closed'}}
end

local sets, skies, position = judge_table(3)
local key = 3
local now
local replies = {}

while ARGV[position] do
  local id, hold, fingerprint = ARGV[position], ARGV[position + 3], ARGV[position + 4]
  local sky, many = skies[tonumber(ARGV[position + 6])], tonumber(ARGV[position + 7])
  local reply
  local twins
  if fingerprint ~= '' then
    twins = KEYS[key]
    key = key + 1
    local first = redis.call('HMGET', twins, 'id', 'fingerprint')
    if first[1] and first[2] ~= fingerprint then
      reply = {'conflict', first[1]}
    elseif first[1] then
      id = first[1]
    end
  end

  if not reply then
    -- A window that lost its member, or never had it, is booked in at the time of the others.
    local at
    local windows, missing, rules = {}, {}, {}
    for place = 1, many do
      local window = KEYS[key + place - 1]
      local known = redis.call('ZSCORE', window, id)
      windows[place] = window
      if known then
        at = tonumber(known)
      else
        missing[#missing + 1] = window
        rules[#rules + 1] = sets[tonumber(ARGV[position + 7 + place])]
      end
    end
    if #missing > 0 then
      local asked, latest = at, at
      if not at then
        asked, latest = tonumber(ARGV[position + 1]), tonumber(ARGV[position + 2])
      end
      if hold ~= '' and tonumber(redis.call('ZSCORE', windows[1], hold)) == asked then
        at = asked
        for _, window in ipairs(windows) do
          redis.call('ZREM', window, hold)
          redis.call('ZREM', KEYS[1], hold .. window)
        end
      else
        at, reply = find_place(missing, rules, sky, asked, latest)
      end
      if at then
        for _, window in ipairs(missing) do
          redis.call('ZADD', window, at, id)
          redis.call('PERSIST', window)
        end
      end
    end
    if at then
      -- Also when it was booked before: who asks now has yet to store the message.
      now = now or now_ms() + ARGV[1]
      for _, window in ipairs(windows) do
        redis.call('ZADD', KEYS[1], now, id .. window)
      end
      if twins then
        redis.call('HSET', twins, 'id', id, 'fingerprint', fingerprint,
          'by:' .. ARGV[position + 5], 1)
        redis.call('PEXPIRE', twins, ARGV[2])
      end
      reply = {'booked', at, id}
    end
  end

  replies[#replies + 1] = reply
  if reply[1] == 'searching' or reply[1] == 'unsure' then
    break
  end
  position = position + 8 + many
  key = key + many
end
return replies
