-- Take permits from logs of sends in one shard, for a group, in order; give turns to those refused.
--
-- KEYS  1 epoch HASH
--       2... logs, ZSETs of permits; score: time of the send, ms
--       then their lines, in the same order, ZSETs of messages that were refused; score: when they
--       come back, ms
--       then closings, STRINGs: until when a channel is closed, ms
-- ARGV  1 within, ms: how long after now a permit may be used
--       2 JSON list of two: the kinds of logs, and, per log, its kind (from 1). A kind: list of its
--         limits as count, length in ms, count, ...; list of its calendar limits, each count and
--         bounds of periods in ms; most permits in hand (0: any); name of its reach in the epoch;
--         whether its lines give turns (1) or note which messages wait (0)
--       3 JSON list, per request: index of its closing in KEYS (0: none), 1-based indexes of its logs
--       4... permit id of each request: message id (16 bytes), then its attempt
-- Reply {'closed'}              the logs are not complete: rebuild first
--       {'elsewhere', now ms}   the calendar periods given do not hold the present
--       or, per request, three integers: wait in ms (0: the permit is taken); what makes it wait:
--       the log (from 1; 0: nothing, or its channel is closed), and which limit of its kind (from 1,
--       limits, calendar limits, in hand)
--
-- A permit enters its logs at now + within, the latest time its send can happen, and is moved to
-- the real time by settle_permits.lua. So a send never lies later than its score, and counting
-- scores later than now - length never counts too few. A permit is in hand while its score is to
-- come. A refused request takes nothing; it is told to wait as if all permits in flight were used
-- now. It joins the line of the log that makes it wait longest. If that gives turns, it is told its
-- own: when the requests before it leave room. A request whose turn has come is judged by the log
-- alone; without room there, it waits for the requests whose turn came before. A request without a
-- turn stands behind the line. Where a request missed its turn and left room, the two swap turns.
-- A line without turns is read where permits are returned (give_back_permits.lua).
--
-- Idempotent by permit id: asked again, a permit that was taken is granted again, and a turn is not
-- lost. A permit that a rebuild put there for a claim under way (restore_permits.lua; its score is no
-- whole ms) was perhaps never granted: it is judged as if it were not there.

-- How long a turn is reserved for a message that does not come, and after which time a present one
-- may have it.
local LATE, LATE_ENOUGH = 60000, 100
-- When to come back where too many are in hand: it is not known when one ends.
local BUSY = 20
-- Turns follow each other a little slower than the limit allows, so that one late request does not
-- make all behind it come too early.
local SLACK = 1.02

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'closed'}
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local within = tonumber(ARGV[1])
local described, wanted = cjson.decode(ARGV[2]), cjson.decode(ARGV[3])
local kinds, logs = described[1], described[2]
local states = {}

local function score_at(key, rank)
  return math.ceil(redis.call('ZREVRANGE', key, rank, rank, 'WITHSCORES')[2])
end

for log, number in ipairs(logs) do
  local kind, line = kinds[number], 1 + #logs + log
  local state = {
    index = 1 + log, limits = kind[1], calendars = kind[2], most = kind[3], kind = kind,
    line = kind[5] == 1 and line or 0, note = line,
    taken = {}, periods = {}, in_hand = 0, behind = 0, waiting = 0}
  state.empty = redis.call('EXISTS', KEYS[state.index]) == 0
  for index = 1, #state.limits, 2 do
    state.taken[index] = state.empty and 0 or redis.call(
      'ZCOUNT', KEYS[state.index], '(' .. now - state.limits[index + 1], '+inf')
  end
  for number, calendar in ipairs(state.calendars) do
    for index = 2, #calendar - 1 do
      if calendar[index] <= now and now < calendar[index + 1] then
        state.periods[number] = {at = index, taken = state.empty and 0 or redis.call(
          'ZCOUNT', KEYS[state.index], calendar[index], '+inf')}
      end
    end
    if not state.periods[number] then
      return {'elsewhere', now}
    end
  end
  if state.most > 0 then
    -- A permit that was settled in this very ms has a time that is rounded up.
    state.in_hand = redis.call('ZCOUNT', KEYS[state.index], '(' .. now + 1, '+inf')
  end
  if state.line > 0 and redis.call('EXISTS', KEYS[state.line]) == 1 then
    redis.call('ZREMRANGEBYSCORE', KEYS[state.line], '-inf', now - LATE)
    state.waiting = redis.call('ZCARD', KEYS[state.line])
  end
  state.noted = state.line == 0 and redis.call('EXISTS', KEYS[state.note]) == 1
  states[log] = state
end

-- When the log alone has room again for a request after `ahead` others, and which limit says so.
local function free_at(state, ahead)
  local at, limit = now, nil
  for index, taken in pairs(state.taken) do
    local count, length = state.limits[index], state.limits[index + 1]
    if taken >= count then
      local nth = score_at(KEYS[state.index], count - 1 - ahead % count)
      local free = math.min(nth, now) + (1 + math.floor(ahead / count)) * length
      if free > at then
        at, limit = free, (index + 1) / 2
      end
    end
  end
  for number, period in ipairs(state.periods) do
    local calendar = state.calendars[number]
    if period.taken >= calendar[1] and calendar[period.at + 1] > at then
      at, limit = calendar[period.at + 1], #state.limits / 2 + number
    end
  end
  if state.most > 0 and state.in_hand >= state.most and now + BUSY > at then
    at, limit = now + BUSY, #state.limits / 2 + #state.calendars + 1
  end
  return at, limit
end

-- The turn behind the line, from `start` on: where the requests before leave room in every limit;
-- and which limit says so.
local function turn_behind(state, start)
  local turn, limit = start, nil
  local function later(free, number)
    if free > turn then
      turn, limit = free, number
    end
  end
  for index, taken in pairs(state.taken) do
    local count, length = state.limits[index], state.limits[index + 1]
    if state.waiting >= count then
      local before = math.max(score_at(KEYS[state.line], count - 1), now)
      later(before + math.ceil(length * SLACK), (index + 1) / 2)
    elseif taken + state.waiting >= count then
      local nth = score_at(KEYS[state.index], count - state.waiting - 1)
      later(math.min(nth, now) + length, (index + 1) / 2)
    end
  end
  if state.most > 0 and state.in_hand + state.waiting >= state.most then
    later(now + BUSY * (1 + math.floor(state.waiting / state.most)),
      #state.limits / 2 + #state.calendars + 1)
  end
  for number, period in ipairs(state.periods) do
    local calendar = state.calendars[number]
    local free = calendar[#calendar]
    for index = period.at, #calendar - 1 do
      local from, to = calendar[index], calendar[index + 1]
      if turn < to then
        local present = index == period.at
        local taken = present and period.taken or 0
        if state.waiting > 0 then
          taken = taken + redis.call('ZCOUNT', KEYS[state.line], present and '-inf' or from, '(' .. to)
        end
        if taken < calendar[1] then
          free = from
          break
        end
      end
    end
    later(free, #state.limits / 2 + number)
  end
  return turn, limit
end

local function leave_line(state, member)
  redis.call('ZREM', KEYS[state.line], member)
  state.waiting = state.waiting - 1
end

local closings = {}
local function closed_until(index)
  if index == 0 then
    return now
  end
  if not closings[index] then
    closings[index] = tonumber(redis.call('GET', KEYS[index]) or now)
  end
  return math.max(now, closings[index])
end

-- The message that has missed its turn, if any; the request that takes its room gives it another.
local function late_one(state)
  if state.waiting == 0 then
    return nil
  end
  local first = redis.call('ZRANGE', KEYS[state.line], 0, 0, 'WITHSCORES')
  return tonumber(first[2]) < now - LATE_ENOUGH and first[1] or nil
end

local function take(mine, id, own, late)
  for index, state in ipairs(mine) do
    if late[index] then
      redis.call('ZADD', KEYS[state.line], own[index] or turn_behind(state, now), late[index])
      state.joined = true
    end
    redis.call('ZADD', KEYS[state.index], now + within, id)
    for limit, taken in pairs(state.taken) do
      state.taken[limit] = taken + 1
    end
    for _, period in ipairs(state.periods) do
      period.taken = period.taken + 1
    end
    state.in_hand = state.in_hand + 1
    state.touched, state.was_empty, state.empty = true, state.was_empty or state.empty, false
    if own[index] then
      leave_line(state, string.sub(id, 1, 16))
    elseif state.line == 0 and state.noted then
      redis.call('ZREM', KEYS[state.note], string.sub(id, 1, 16))
    end
  end
end

local function join_line(mine, member, own, binding, turn)
  for index, state in ipairs(mine) do
    if index ~= binding then
      if own[index] then
        leave_line(state, member)
      end
    elseif state.line == 0 then
      state.behind = state.behind + 1
      redis.call('ZREMRANGEBYSCORE', KEYS[state.note], '-inf', now)
      redis.call('ZADD', KEYS[state.note], turn, member)
      state.joined, state.noted = true, true
    elseif own[index] ~= turn and not (own[index] and own[index] <= now) then
      redis.call('ZADD', KEYS[state.line], turn, member)
      state.waiting = state.waiting + 1
      state.joined = true
    end
  end
end

-- Remove a permit that a rebuild put there, so that its request is judged.
local function forget_restored(state, id)
  local at = redis.call('ZSCORE', KEYS[state.index], id)
  at = at and tonumber(at)
  if not at or at % 1 == 0 then
    return
  end
  redis.call('ZREM', KEYS[state.index], id)
  for index, taken in pairs(state.taken) do
    if at > now - state.limits[index + 1] then
      state.taken[index] = taken - 1
    end
  end
  for number, period in ipairs(state.periods) do
    if at >= state.calendars[number][period.at] then
      period.taken = period.taken - 1
    end
  end
  if at > now + 1 then
    state.in_hand = state.in_hand - 1
  end
end

local reply = {}
for request, indexes in ipairs(wanted) do
  local id = ARGV[3 + request]
  local member = string.sub(id, 1, 16)
  local closed = closed_until(indexes[1])
  local mine, own = {}, {}
  for index = 2, #indexes do
    local state = states[indexes[index]]
    if not state.empty then
      forget_restored(state, id)
    end
    mine[index - 1] = state
    own[index - 1] = state.waiting > 0 and tonumber(redis.call('ZSCORE', KEYS[state.line], member) or nil)
  end
  local at, binding, limit, late = closed, nil, nil, {}
  for index, state in ipairs(mine) do
    local mine_at, turn, why
    local ahead = own[index] and redis.call('ZRANK', KEYS[state.line], member) or state.behind
    local free, short = free_at(state, ahead)
    if state.line == 0 then
      mine_at = math.max(free, closed)
    elseif own[index] and own[index] <= now and closed == now then
      mine_at = free
    elseif own[index] and own[index] > now and own[index] >= closed then
      late[index] = free == now and closed == now and late_one(state) or nil
      mine_at = late[index] and now or own[index]
    else
      if own[index] then
        leave_line(state, member)
        own[index] = nil
      end
      late[index] = free == now and closed == now and late_one(state) or nil
      turn, why = turn_behind(state, closed)
      mine_at = late[index] and now or turn
    end
    if not binding or mine_at > at or (mine_at == at and state.line > 0) then
      binding, limit = index, mine_at > closed and (why or short or 1)
    end
    at = math.max(at, mine_at)
  end
  local wait = at - now
  if mine[1] and not mine[1].empty and redis.call('ZSCORE', KEYS[mine[1].index], id) then
    wait = 0
  elseif wait == 0 then
    take(mine, id, own, late)
  elseif binding then
    join_line(mine, member, own, binding, at)
  end
  local shown = wait > 0 and limit
  reply[#reply + 1] = wait
  reply[#reply + 1] = shown and indexes[1 + binding] or 0
  reply[#reply + 1] = shown or 0
end

-- Other processes may have longer limits on the same log: it reaches as far back as the epoch says.
local reaches = {}
local function reach_of(kind)
  if reaches[kind] then
    return reaches[kind]
  end
  local reach = tonumber(redis.call('HGET', KEYS[1], 'reach:' .. kind[4])) or 0
  for index = 2, #kind[1], 2 do
    reach = math.max(reach, kind[1][index])
  end
  for _, calendar in ipairs(kind[2]) do
    for index = 2, #calendar - 1 do
      reach = math.max(reach, calendar[index + 1] - calendar[index])
    end
  end
  reaches[kind] = reach
  return reach
end

for _, state in ipairs(states) do
  if state.joined and redis.call('EXISTS', KEYS[state.note]) == 1 then
    redis.call('PEXPIREAT', KEYS[state.note], score_at(KEYS[state.note], 0) + LATE)
  end
  if state.touched then
    if not state.was_empty then
      redis.call('ZREMRANGEBYSCORE', KEYS[state.index], '-inf', now - reach_of(state.kind))
    end
    -- A request of another claim may have had more time: its permit counts longer than this one.
    local last = score_at(KEYS[state.index], 0)
    redis.call('PEXPIREAT', KEYS[state.index], last + reach_of(state.kind))
  end
end
return reply
