-- Take permits from logs of sends in one shard, for a group, in order; give turns to those refused.
--
-- KEYS  1 epoch HASH
--       2... per log four ZSETs: its permits, score: time of the send, ms; its line, messages that
--       were refused, score: when they come back, ms; where it gives turns their order and shares
--       then closings, STRINGs: until when a channel is closed, ms
-- ARGV  1 within, ms: how long after now a permit may be used
--       2 JSON of three lists. kinds, of logs: limits (each a count, and length in ms, or bounds of
--         calendar periods in ms, or neither: of permits in hand), reach (its name in the epoch),
--         longest limit in ms, gives_turns. logs: of each its kind (from 1). requests: closing (index
--         in KEYS, 0: none), priority, share, cost (one permit's part of its share: larger for a
--         smaller weight), logs (from 1)
--       3... permit id of each request: message id (16 bytes), then its attempt
-- Reply {'closed'}              the logs are not complete: rebuild first
--       {'elsewhere'}           the calendar periods given do not hold the present
--       or, per request, three integers: wait in ms (0: the permit is taken); what makes it wait:
--       the log (from 1; 0: nothing, or its channel is closed), and which limit of its kind (from 1)
--
-- A permit enters its logs at now + within, the latest time its send can happen, and is moved to
-- the real time by settle_permits.lua. So a send never lies later than its score, and counting
-- scores later than now - length never counts too few. A permit is in hand while its score is to
-- come. A refused request takes nothing; it is told to wait as if all permits in flight were used
-- now, in the log that makes it wait longest. A line without turns notes that it waits, and is read
-- where permits are returned (give_back_permits.lua).
--
-- A line that gives turns is served in its order: larger priorities first, within one by start-time
-- fair queueing (P. Goyal, H. M. Vin, H. Cheng, SIGCOMM 1996). At its first request a message is
-- tagged with the larger of its class's virtual time, the least tag in the order, and the end of its
-- share's last message; that end is then its cost later. So a share that was idle begins with the
-- others, and has saved nothing. With one share all go first come, first served. A request is told
-- when those before it leave room; it may take a permit that no message before it is called for. A
-- message that does not come in time keeps its tag for a while, and nobody waits for it.
--
-- Idempotent by permit id: asked again, a permit that was taken is granted again, and a turn is not
-- lost. A permit that a rebuild put there for a claim under way (restore_permits.lua; its score is no
-- whole ms) was perhaps never granted: it is judged as if it were not there.

-- A message is called for from SOON before its turn until LATE_ENOUGH after it, and then keeps its
-- tag until it is LATE.
local SOON, LATE_ENOUGH, LATE = 50, 100, 60000
-- When to come back where too many are in hand: it is not known when one ends.
local BUSY = 20
-- Turns follow each other a little slower than the limit allows, so that one late request does not
-- make all behind it come too early.
local SLACK = 1.02
-- Scores in an order are tag - priority * CLASS, those of late messages AWAY more, and their turns
-- GONE less. A double has 53 bits.
local CLASS, AWAY, GONE = 2 ^ 45, 2 ^ 53, 2 ^ 43
-- Late messages put aside at a time, and messages called for that are looked at.
local MOST = 1000

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'closed'}
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local within = tonumber(ARGV[1])
local call = cjson.decode(ARGV[2])
local states = {}

local function score_at(key, rank)
  return math.ceil(redis.call('ZREVRANGE', key, rank, rank, 'WITHSCORES')[2])
end

local function score_of(key, member)
  return tonumber(redis.call('ZSCORE', key, member) or nil)
end

local function below(score)
  return string.format('(%.17g', score)
end

-- Put late messages aside, and forget those that are too late, and those that have left the line.
local function tidy(line, order)
  local late = redis.call(
    'ZRANGEBYSCORE', line, 0, '(' .. now - LATE_ENOUGH, 'WITHSCORES', 'LIMIT', 0, MOST)
  for index = 1, #late, 2 do
    redis.call('ZADD', line, late[index + 1] - GONE, late[index])
    redis.call('ZADD', order, 'XX', 'INCR', AWAY, late[index])
  end
  local too_late = redis.call('ZRANGEBYSCORE', line, '-inf', now - LATE - GONE, 'LIMIT', 0, MOST)
  for _, member in ipairs(too_late) do
    redis.call('ZREM', line, member)
    redis.call('ZREM', order, member)
  end
  local first = redis.call('ZRANGE', order, 0, 0)[1]
  while first and not redis.call('ZSCORE', line, first) do
    redis.call('ZREM', order, first)
    first = redis.call('ZRANGE', order, 0, 0)[1]
  end
end

-- Permits that a rebuild put there are judged as if they were not there.
for number, request in ipairs(call.requests) do
  for _, log in ipairs(request.logs) do
    local at = score_of(KEYS[4 * log - 2], ARGV[2 + number])
    if at and at % 1 ~= 0 then
      redis.call('ZREM', KEYS[4 * log - 2], ARGV[2 + number])
    end
  end
end

local function period_of(bounds)
  for index = 1, #bounds - 1 do
    if bounds[index] <= now and now < bounds[index + 1] then
      return index
    end
  end
end

for number, of in ipairs(call.logs) do
  local kind, key = call.kinds[of], 4 * number - 2
  local state = {
    kind = kind, gives_turns = kind.gives_turns, limits = {}, behind = 0, classes = {}, ends = {},
    log = KEYS[key], line = KEYS[key + 1], order = KEYS[key + 2], shares = KEYS[key + 3]}
  state.empty = redis.call('EXISTS', state.log) == 0
  for index, rule in ipairs(kind.limits) do
    -- A permit that was settled in this very ms has a time that is rounded up.
    local since, period = '(' .. now + 1, nil
    if rule.length then
      since = '(' .. now - rule.length
    elseif rule.bounds then
      period = period_of(rule.bounds)
      if not period then
        return {'elsewhere'}
      end
      since = rule.bounds[period]
    end
    local taken = state.empty and 0 or redis.call('ZCOUNT', state.log, since, '+inf')
    state.limits[index] = {
      count = rule.count, length = rule.length, bounds = rule.bounds, period = period, taken = taken}
  end
  -- Whether messages waited when this call began, and whether any wait by now.
  state.waited = redis.call('EXISTS', state.line) == 1
  state.waits = state.waited
  if state.gives_turns and state.waited then
    tidy(state.line, state.order)
  end
  states[number] = state
end

local function room_of(state)
  local room = math.huge
  for _, limit in ipairs(state.limits) do
    room = math.min(room, limit.count - limit.taken)
  end
  return room
end

-- When a limit has room after `ahead` others, from `start` on.
local function free_after(state, limit, ahead, start)
  local count, length, bounds = limit.count, limit.length, limit.bounds
  if bounds then
    local room = count - limit.taken
    for index = limit.period, #bounds - 1 do
      if bounds[index + 1] > start then
        if ahead < room then
          return bounds[index]
        end
        ahead = ahead - math.max(0, room)
      end
      room = count
    end
    return bounds[#bounds]
  elseif not length then
    return limit.taken + ahead < count and start or start + BUSY * (1 + math.floor(ahead / count))
  end
  local first, rank = start, count - 1 - ahead % count
  if rank < limit.taken then
    first = math.max(start, math.min(score_at(state.log, rank), now) + length)
  end
  local slack = state.gives_turns and SLACK or 1
  return first + math.ceil(math.floor(ahead / count) * length * slack)
end

-- When a log has room after `ahead` others, from `start` on, and which limit says so.
local function turn_after(state, ahead, start)
  local turn, short = start, nil
  for index, limit in ipairs(state.limits) do
    if state.gives_turns or limit.taken >= limit.count then
      local free = free_after(state, limit, ahead, start)
      if free > turn then
        turn, short = free, index
      end
    end
  end
  return turn, short
end

local function class_of(state, priority)
  local class = state.classes[priority]
  if not class then
    class = {base = -priority * CLASS, time = 0}
    if state.waited then
      class.first = redis.call('ZRANGEBYSCORE', state.order, class.base, below(class.base + CLASS),
        'WITHSCORES', 'LIMIT', 0, 1)[2]
      class.first = class.first and class.first - class.base
      class.time = (score_of(state.shares, priority) or class.base) - class.base
      class.time = math.max(class.time, class.first or 0)
    end
    state.classes[priority] = class
  end
  return class
end

-- Where the share's last message ends.
local function end_of(state, class, name)
  if not state.ends[name] then
    local last = state.waited and score_of(state.shares, name)
    state.ends[name] = {at = last and last - class.base or 0, class = class}
  end
  return state.ends[name]
end

-- The score of a request in the order; whether it was there; the end of its share, if not.
local function place_of(state, member, priority, share)
  local class = class_of(state, priority)
  local place = state.waits and score_of(state.order, member)
  place = place and (place >= AWAY / 2 and place - AWAY or place)
  if place and place >= class.base and place < class.base + CLASS then
    return place
  end
  local last = end_of(state, class, priority .. ':' .. share)
  return class.base + math.max(class.time, last.at), last
end

-- How many messages a request yields to: those called for that are before it. Where shares are not
-- told apart, those of its class whose turn was before its own do not count: they change turns.
local function called_before(state, member, place, base, share)
  if not state.called then
    state.called = {}
    local called = redis.call('ZRANGEBYSCORE', state.line, now - LATE_ENOUGH, now + SOON,
      'WITHSCORES', 'LIMIT', 0, MOST)
    for index = 1, #called, 2 do
      local at = score_of(state.order, called[index])
      state.called[called[index]] = at and {place = at, turn = tonumber(called[index + 1])}
    end
  end
  local own = state.called[member]
  local turn = share == '' and own and own.turn <= now and own.turn or 0
  local number = 0
  for _, other in pairs(state.called) do
    if other.place < place and (other.place < base or other.turn > turn) then
      number = number + 1
    end
  end
  return number
end

local function closed_until(index)
  local ends = index > 0 and redis.call('GET', KEYS[index])
  return math.max(now, tonumber(ends or now))
end

local function leave_line(state, member)
  redis.call('ZREM', state.line, member)
  if state.gives_turns then
    redis.call('ZREM', state.order, member)
    if state.called then
      state.called[member] = nil
    end
  end
end

local function pay(asked, cost)
  if asked.last then
    asked.last.at = asked.place - asked.last.class.base + cost
    asked.last.is_new = true
  end
end

local function take(asks, id, priority, cost)
  for _, asked in ipairs(asks) do
    local state = asked.state
    redis.call('ZADD', state.log, now + within, id)
    for _, limit in ipairs(state.limits) do
      limit.taken = limit.taken + 1
    end
    state.touched, state.was_empty, state.empty = true, state.was_empty or state.empty, false
    if state.waits then
      leave_line(state, string.sub(id, 1, 16))
    end
    if state.gives_turns then
      local class = class_of(state, priority)
      local start = asked.place - class.base
      class.time = math.max(class.time, math.min(start, class.first or start))
      pay(asked, cost)
    end
  end
end

-- Stand in the order, as far as the turn is to be known.
local function stand(state, member, place)
  if not state.waits then
    redis.call('UNLINK', state.order, state.shares)
    state.waits = true
  end
  redis.call('ZADD', state.order, place, member)
  return redis.call('ZRANK', state.order, member)
end

local function join_line(asked, member, turn, cost)
  local state = asked.state
  state.waits = true
  if state.gives_turns then
    pay(asked, cost)
    if state.called and turn <= now + SOON then
      state.called[member] = {place = asked.place, turn = turn}
    end
  else
    state.behind = state.behind + 1
    redis.call('ZREMRANGEBYSCORE', state.line, '-inf', now)
  end
  redis.call('ZADD', state.line, turn, member)
end

local reply = {}
for number, request in ipairs(call.requests) do
  local id = ARGV[2 + number]
  local member = string.sub(id, 1, 16)
  local closed, priority, cost = closed_until(request.closing), request.priority, request.cost
  -- When it may go; the ask that makes it wait longest, and the limit of that which is short.
  local asks, turn, binding, short = {}, closed, nil, nil
  for _, log in ipairs(request.logs) do
    local state = states[log]
    local asked = {state = state, log = log}
    local room = closed == now and room_of(state) or 0
    if state.gives_turns then
      asked.place, asked.last = place_of(state, member, priority, request.share)
      if room > 0 and state.waits then
        room = room - called_before(state, member, asked.place, -priority * CLASS, request.share)
      end
    end
    asked.is_refused = room <= 0
    asks[#asks + 1] = asked
  end
  local state = asks[1] and asks[1].state
  if state and not state.empty and redis.call('ZSCORE', state.log, id) then
    turn = now
  else
    for _, asked in ipairs(asks) do
      if asked.is_refused then
        local ahead = asked.state.behind
        if asked.state.gives_turns then
          ahead = stand(asked.state, member, asked.place)
        end
        local own_turn, own_short = turn_after(asked.state, ahead, closed)
        if not binding or own_turn > turn or (own_turn == turn and asked.state.gives_turns) then
          turn, binding, short = own_turn, asked, own_short
        end
      end
    end
    if turn == now then
      take(asks, id, priority, cost)
    elseif binding then
      -- One that soon comes again for the channel keeps its place in the lines of its scopes.
      local keeps = closed == now and turn <= now + LATE
      for _, asked in ipairs(asks) do
        local state = asked.state
        if asked == binding then
          join_line(asked, member, turn, cost)
          keeps = false
        elseif state.gives_turns and state.waits then
          if keeps and score_of(state.order, member) then
            join_line(asked, member, turn, cost)
          else
            leave_line(state, member)
          end
        end
      end
    end
  end
  local is_told = turn > now and closed == now and short
  reply[#reply + 1] = turn - now
  reply[#reply + 1] = is_told and binding.log or 0
  reply[#reply + 1] = is_told and short or 0
end

-- Other processes may have longer limits on the same log: it reaches as far back as the epoch says.
local function reach_of(kind)
  local reach = redis.call('HGET', KEYS[1], 'reach:' .. kind.reach)
  return math.max(tonumber(reach or 0), kind.longest)
end

-- Note how far the classes and the shares of a line have come; nothing where nobody waits.
local function note_times(state, ends)
  for name, last in pairs(state.ends) do
    if last.is_new then
      redis.call('ZADD', state.shares, last.class.base + last.at, name)
    end
  end
  for priority, class in pairs(state.classes) do
    redis.call('ZADD', state.shares, class.base + class.time, priority)
    redis.call('ZREMRANGEBYSCORE', state.shares, class.base, below(class.base + class.time))
  end
  redis.call('PEXPIREAT', state.order, ends)
  redis.call('PEXPIREAT', state.shares, ends)
end

for _, state in ipairs(states) do
  if state.waits and redis.call('EXISTS', state.line) == 1 then
    local last = score_at(state.line, 0)
    local ends = (last < 0 and last + GONE or last) + LATE
    redis.call('PEXPIREAT', state.line, ends)
    if state.gives_turns then
      note_times(state, ends)
    end
  elseif state.waits and state.gives_turns then
    redis.call('UNLINK', state.order, state.shares)
  end
  if state.touched then
    local reach = reach_of(state.kind)
    if not state.was_empty then
      redis.call('ZREMRANGEBYSCORE', state.log, '-inf', now - reach)
    end
    -- A request of another claim may have had more time: its permit counts longer than this one.
    local last = score_at(state.log, 0)
    redis.call('PEXPIREAT', state.log, last + reach)
  end
end
return reply
