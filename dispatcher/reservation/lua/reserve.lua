-- Judge send times against every quota of their scopes and book them, or the next slots, in one
-- step: one message after another, each seeing those before it.
--
-- KEYS  1 pending ZSET   2 epoch HASH
--       3... of each message: its duplicates HASH (only with an idempotency key), its window ZSETs
-- ARGV  1 how far ahead of now the pending time is set, ms
--       2 life of the duplicates HASHes, ms
--       3 {terms, ...}, all that differ: extra: 1 if their messages have extra words, rules: {rule set
--         of each window}, blackouts (rule.lua)
--       4... of each message: member (id of 16 bytes, and the tail of its last move), time asked for
--       in ms, latest time to book in ms (= asked: book that time or nothing), index of its terms;
--       extra words: hold ('' or a member that check.lua put at the time asked for, which needs no
--       judging where it still stands in every window), present member of a message that is moved
--       ('' for others), fingerprint ('' without idempotency key), token of this submit; of a move
--       without a key: {members, ...} that leave with it ('' without)
-- Reply a list of one reply for each message, in order:
--       at ms                                              booked
--       {'booked', at ms, id}                              a duplicate submit booked first, with that id
--       {'refused', slot ms, scope, quota, id, id, ...}    1-based indexes; 0, 0: a blackout
--       {'searching', from ms, scope, quota, id, ...}      too far for one call: ask again from there
--       {'unsure', at ms}                                  judging that time takes more than one call
--       {'unsure', at ms, scope, quota, id, ...}           so does a later time, if not the one asked
--       {'conflict', id}                                   the key is in use for another fingerprint
--       Ends early with {'closed'} when the shard is not complete: rebuild first; after a
--       'searching' or an 'unsure', because what follows must not overtake that message; and after
--       MOST_READ members in all.
--
-- Idempotent by member: called again, it answers with what is booked. A move is judged as if the present
-- member, and those that leave with it, were not there. They stay: the row decides which of the two the
-- message has (decision 0031).

-- @include rule.lua
-- @include clock.lua

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {{'closed'}}
end

local terms = cmsgpack.unpack(ARGV[3])
local position = 4
local key = 3
local now
local replies, stop, in_all = {}, false, 0
stretches = {}  -- each message of a campaign begins its search where the one before found a slot

while ARGV[position] do
  local id, mine = ARGV[position], terms[tonumber(ARGV[position + 3])]
  local hold, present, fingerprint, words = '', '', '', 4
  if mine.extra == 1 then
    hold, present, fingerprint = unpack(ARGV, position + 4, position + 6)
    words = 8
  end
  local many = #mine.rules
  local reply
  local duplicates
  if fingerprint ~= '' then
    duplicates = KEYS[key]
    key = key + 1
    local first = redis.call('HMGET', duplicates, 'id', 'fingerprint')
    if first[1] and first[2] ~= fingerprint then
      reply = {'conflict', first[1]}
    elseif first[1] then
      local has_reservation = first[1] == id
      for index = key, key + many - 1 do
        has_reservation = has_reservation or redis.call('ZSCORE', KEYS[index], first[1])
      end
      if has_reservation then
        id = first[1]
      else
        redis.call('DEL', duplicates)  -- given up: its id is never stored
      end
    end
  end

  if not reply then
    -- A window that lost its member, or never had it, is booked in at the time of the others.
    local at
    local windows, missing, rules, indexes = {}, {}, {}, {}
    for index = 1, many do
      local window = KEYS[key + index - 1]
      local known = redis.call('ZSCORE', window, id)
      windows[index] = window
      if known then
        at = tonumber(known)
      else
        missing[#missing + 1] = window
        rules[#rules + 1] = mine.rules[index]
        indexes[#indexes + 1] = index
      end
    end
    if #missing > 0 then
      local asked, latest = at, at
      if not at then
        asked, latest = tonumber(ARGV[position + 1]), tonumber(ARGV[position + 2])
      end
      if hold ~= '' and hold_in_all(missing, hold) == asked then
        at = asked
        for _, window in ipairs(windows) do
          redis.call('ZREM', window, hold)
          redis.call('ZREM', KEYS[1], hold .. window)
        end
        stretches = {}  -- the window has lost a member
      else
        if present == '' then
          at, reply = find_slot(missing, rules, mine.blackouts, asked, latest)
        else
          stretches = {}  -- the windows lose a member
          local leaving = {present}
          if not duplicates and ARGV[position + 7] ~= '' then
            leaving = cmsgpack.unpack(ARGV[position + 7])
            leaving[#leaving + 1] = present
            counted = counted + #leaving * #missing
          end
          at, reply = without(missing, leaving, function()
            return find_slot(missing, rules, mine.blackouts, asked, latest)
          end)
        end
        if reply then
          stop = reply[1] ~= 'refused'
          if reply[3] then
            reply[3] = indexes[reply[3]] or 0
          end
        end
      end
      if at then
        for _, window in ipairs(missing) do
          redis.call('ZADD', window, at, id)
        end
      end
    end
    if at then
      -- Also when it was booked before: this submit has yet to store the message, and so may a
      -- duplicate submit that has longer to do it.
      now = now or now_ms() + ARGV[1]
      for _, window in ipairs(windows) do
        redis.call('ZADD', KEYS[1], 'GT', now, id .. window)
        if present ~= '' then
          redis.call('ZADD', KEYS[1], 'GT', now, present .. window)
        end
      end
      if duplicates then
        redis.call('HSET', duplicates, 'id', id, 'fingerprint', fingerprint,
          'by:' .. ARGV[position + 7], 1)
        if redis.call('PTTL', duplicates) < tonumber(ARGV[2]) then
          redis.call('PEXPIRE', duplicates, ARGV[2])
        end
      end
      reply = id == ARGV[position] and at or {'booked', at, id}
    end
  end

  replies[#replies + 1] = reply
  -- Each message may read as much as if it were alone: its reply does not depend on those before.
  in_all = in_all + read + counted
  read, counted = 0, 0
  if stop or in_all > MOST_READ then
    break
  end
  position = position + words
  key = key + many
end
return replies
