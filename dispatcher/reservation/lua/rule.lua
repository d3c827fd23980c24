-- The reservation rule, shared by all scripts that judge a time.
--
-- For a quota of N per W a time t is blocked exactly when some run of N consecutive members
-- s1 <= ... <= sN of the window with sN - s1 < W satisfies sN - W < t < s1 + W. For a calendar
-- quota of N it is blocked when N members lie in the period of t. All times are integer
-- milliseconds; Lua writes 14 digits, which is exact until the year 5138.
--
-- A rule set is what one scope is judged by, and blackouts (quiet hours) are the same for all scopes
-- of a message. Both come in MessagePack:
--   rule set   longest: the longest length, least: the least N, rolling: {N, W} of each quota,
--              calendars: {N, {bounds}} of each calendar quota; N is {N of each period} where it grows
--   blackouts  covered: end of what bounds and blackouts cover,
--              edges: from and until of each blackout, sorted

-- One call reads at most about so many members and counts, so that it stays in the low
-- milliseconds; what takes longer goes on in another call. Edges of periods and of quiet hours that
-- it looks through count too, so many as one member.
local MOST_READ, MOST_LEAPS = 2000, 500
local EDGES = 16
-- Runs up to this long are read as a whole; longer ones are walked over.
local SHORT = 16
-- A refusal names at most so many messages.
local MOST_NAMED = 100
local LEAST_SCAN, MOST_SCAN = 16, 512
local read = 0
-- What each judgement counts before it reads or walks. A search makes many of them; but none ends
-- for want of this, or it would not get on.
local counted = 0
-- How many members one call reads of long quotas at times that something else blocks already, all
-- those times together. It only learns whether they block for longer; the next call forgets it, so
-- reading more would cost each call the same again.
local MOST_FOR_BLOCKED = 500
-- The last full stretch that `gap_after` found in each window for each short quota: {from, to}, all
-- times of which are blocked. A script that sets this to {} lets later searches skip it, and must
-- empty it whenever it takes a member out of a window. Without it (nil) nothing is remembered.
local stretches

-- When the blackout that holds t ends; t itself when none does. And up to when blackouts are known.
local function blackout_end(blackouts, t)
  local edges = blackouts.edges
  for index = 1, #edges, 2 do
    if t < edges[index] then
      break
    end
    t = math.max(t, edges[index + 1])
    counted = counted + 1 / EDGES
  end
  return t, blackouts.covered
end

-- What `work` returns, two values, where it sees the windows without these members ('' is none).
-- They are back before the script answers, so no other call misses them.
local function without(windows, members, work)
  local own = {}
  for _, window in ipairs(windows) do
    for _, member in ipairs(members) do
      local score = member ~= '' and redis.call('ZSCORE', window, member)
      if score then
        own[#own + 1] = {window, score, member}
        redis.call('ZREM', window, member)
      end
    end
  end
  local first, second = work()
  for _, each in ipairs(own) do
    redis.call('ZADD', each[1], each[2], each[3])
  end
  return first, second
end

local function near(window, t, length)
  counted = counted + 1
  return redis.call('ZCOUNT', window, '(' .. t - length, '(' .. t + length)
end

local function score_at(window, rank)
  return tonumber(redis.call('ZRANGE', window, rank, rank, 'WITHSCORES')[2])
end

-- The ids of members, or of whose holds they are.
local function ids_of(members)
  for index, member in ipairs(members) do
    members[index] = string.sub(member, 1, 16)
  end
  return members
end

-- Until when a short run blocks t, and what tells its ids; nil when none does.
local function blocked_by_short_run(window, t, count, length)
  local around = redis.call(
    'ZRANGEBYSCORE', window, '(' .. t - length, '(' .. t + length, 'WITHSCORES')
  read = read + #around / 2
  -- The latest tight run reaches furthest, so look from the end.
  for first = #around / 2 - count + 1, 1, -1 do
    local s1 = tonumber(around[2 * first])
    local sn = tonumber(around[2 * (first + count - 1)])
    if sn - s1 < length then
      return s1 + length, function()
        local run = {}
        for index = first, first + count - 1 do
          run[#run + 1] = around[2 * index - 1]
        end
        return ids_of(run)
      end
    end
  end
  return nil
end

-- A time up to which the short runs of one quota block all times from t on: the first one that they
-- leave open, unless too much was read before. So a search crosses a full stretch in a few reads,
-- and not in one leap for each message in it.
--
-- A page begins with the first member that can block t. A run whose last member lies at t + W or
-- later leaves t open; a tight one before it moves t to s1 + W.
local function gap_after(window, t, count, length)
  local key = window .. ' ' .. count .. ' ' .. length
  local from, stretch, width = t, stretches and stretches[key], LEAST_SCAN
  local is_open = false
  while not is_open and read < MOST_READ do
    if stretch and stretch[1] <= t and t < stretch[2] then
      from, t = math.min(from, stretch[1]), stretch[2]
    end
    local before = t
    local page = redis.call(
      'ZRANGEBYSCORE', window, '(' .. t - length, '+inf', 'WITHSCORES', 'LIMIT', 0, width)
    read = read + #page / 2
    for first = 1, #page / 2 - count + 1 do
      local s1 = tonumber(page[2 * first])
      local sn = tonumber(page[2 * (first + count - 1)])
      is_open = sn - length >= t
      if is_open then
        break
      end
      if sn - s1 < length then
        t = math.max(t, s1 + length)
      end
    end
    -- No member is left; or none of this page blocks t, which is judged again by the caller.
    is_open = is_open or #page < 2 * width or t == before
    width = math.min(2 * width, MOST_SCAN)
  end
  if stretches and t > from then
    stretches[key] = {from, t}
  end
  return t
end

-- The last tight run that ends at a rank from `lowest` to `highest`: its first time.
local function scan(window, lowest, highest, count, length)
  local ends = redis.call('ZRANGE', window, lowest, highest, 'WITHSCORES')
  local starts = redis.call(
    'ZRANGE', window, lowest - count + 1, highest - count + 1, 'WITHSCORES')
  read = read + #ends
  for index = #ends, 2, -2 do
    if ends[index] - starts[index] < length then
      return tonumber(starts[index])
    end
  end
  return nil
end

-- The last tight run that ends at a rank from `lowest` to `last`, by jumps: its first time. Or nil,
-- and the time up to which ends are still to be looked at where that took too long. When the run
-- that starts at s1 is not tight, no run is that ends at or after s1 + W and not after it.
local function walk(window, lowest, last, count, length, most)
  local width = LEAST_SCAN
  while last >= lowest do
    local s1 = score_at(window, last - count + 1)
    if read > most then
      return nil, score_at(window, last)
    end
    read = read + 2
    local before = redis.call('ZCOUNT', window, '-inf', '(' .. s1 + length) - 1
    local tight = before >= last
    if not tight and last - before <= 3 then
      -- Short jumps cost more than reading what they would skip.
      local from = math.max(lowest, before - width + 1)
      s1 = from <= before and scan(window, from, before, count, length)
      tight = s1
      before = from - 1
      width = math.min(2 * width, MOST_SCAN)
    else
      width = LEAST_SCAN
    end
    if tight then
      return s1
    end
    last = before
  end
  return nil
end

-- The same as for a short run, for runs of any length. `within` is how many members are near;
-- `seen` tells which runs were looked at for an earlier time: those that end before its `top` and,
-- if it has one, after its `bottom`. Returns until when t is blocked and what tells the ids of the
-- run, or nil; and where to go on when it took too long.
local function blocked_by_long_run(window, t, count, length, within, seen, most)
  local lowest = redis.call('ZCOUNT', window, '-inf', t - length) + count - 1
  local last = lowest - count + within
  local fresh = lowest
  counted = counted + 2
  if seen.top then
    fresh = math.max(lowest, redis.call('ZCOUNT', window, '-inf', '(' .. seen.top))
  end
  local s1, rest = walk(window, fresh, last, count, length, most)
  if seen.bottom and not s1 and not rest then
    last = math.min(last, redis.call('ZCOUNT', window, '-inf', seen.bottom) - 1)
    s1, rest = walk(window, lowest, last, count, length, most)
  end
  -- A run that is tight is none for the times that it does not block, nor is one before it.
  seen.top, seen.bottom = t + length, rest
  if not s1 then
    return nil, nil, rest
  end
  return s1 + length, function()
    return ids_of(redis.call(
      'ZRANGEBYSCORE', window, s1, '+inf', 'LIMIT', 0, math.min(count, MOST_NAMED)))
  end
end

-- Until when a calendar quota blocks t, and the bounds of its period; nil when it does not.
local function blocked_by_period(window, t, count, bounds)
  for index = 1, #bounds - 1 do
    local from, to = bounds[index], bounds[index + 1]
    if from <= t and t < to then
      read = read + 1
      counted = counted + index / EDGES
      count = type(count) == 'table' and count[index] or count
      if redis.call('ZCOUNT', window, from, '(' .. to) < count then
        return nil
      end
      return to, function()
        local most = math.min(count, MOST_NAMED)
        return ids_of(redis.call('ZRANGEBYSCORE', window, from, '(' .. to, 'LIMIT', 0, most))
      end
    end
  end
  return nil
end

-- Whether one long quota {N, index of the scope, index of the quota, …} is judged before another: by
-- these three.
local function comes_before(one, other)
  for field = 1, 3 do
    if one[field] ~= other[field] then
      return one[field] < other[field]
    end
  end
  return false
end

-- Judge t by the rule sets of all scopes; `windows` and `sets` go together. Returns the latest
-- time until which t is blocked (t itself: it fits) and what blocks it: index of the scope, index
-- of the quota, and a function that tells the ids of the run, a hundred to read for an answer that
-- most have no use for. Or, when it took too long, nil and where to go on: index of the scope,
-- index of the quota, time. `resume` is such an answer. `seen` is nil where one time is judged; a
-- search for a slot gives one table for all its times: what is known of each long quota, by
-- 'index number', as most of it holds for later times too; and `spare`, how much may still be read
-- for times that are blocked. Only a search needs the end of a full stretch.
--
-- Of the long quotas those of the least N come first: they are quickly read, and once one of them
-- blocks t, the others need not be read to their end.
local function judge(windows, sets, t, resume, seen)
  local furthest, by, long = t, nil, {}
  local function blocks(index, number, until_ms, tell)
    furthest = math.max(furthest, until_ms)
    if not by or index < by[1] or (index == by[1] and number < by[2]) then
      by = {index, number, tell}
    end
  end
  for index, window in ipairs(windows) do
    local set = sets[index]
    local within = near(window, t, set.longest)
    -- A quota of N can only block where N members are near.
    if within >= set.least then
      for number, quota in ipairs(set.rolling) do
        local count, length = quota[1], quota[2]
        local close = within
        if within >= count and length < set.longest then
          close = near(window, t, length)
        end
        if close >= count then
          -- On resume every quota comes here, also one that is short by now (a crowd may have thinned
          -- out): the loop below must meet it to see whether the earlier call judged it.
          if resume or count > SHORT or close > 8 * SHORT then
            local rank, walked = #long + 1, {count, index, number, close}
            while rank > 1 and comes_before(walked, long[rank - 1]) do
              long[rank] = long[rank - 1]
              rank = rank - 1
            end
            long[rank] = walked
          else
            local until_ms, tell = blocked_by_short_run(window, t, count, length)
            if until_ms and seen then
              until_ms = gap_after(window, until_ms, count, length)
            end
            if until_ms then
              blocks(index, number, until_ms, tell)
            end
          end
        end
      end
      for number, calendar in ipairs(resume and {} or set.calendars) do
        local until_ms, tell = blocked_by_period(window, t, calendar[1], calendar[2])
        if until_ms then
          blocks(index, #set.rolling + number, until_ms, tell)
        end
      end
    end
  end
  local reached
  if resume then
    reached = {sets[resume[1]].rolling[resume[2]][1], resume[1], resume[2]}
  end
  seen = seen or {spare = MOST_FOR_BLOCKED}
  for _, walked in ipairs(long) do
    local count, index, number, close = unpack(walked)
    local length = sets[index].rolling[number][2]
    local key = index .. ' ' .. number
    local known = seen[key] or {}
    if reached and index == resume[1] and number == resume[2] then
      known = {top = t + length, bottom = resume[3]}
    end
    if not reached or not comes_before(walked, reached) then
      local before, most = read, MOST_READ
      if by then
        if seen.spare <= 0 then
          return furthest, by
        end
        most = math.min(MOST_READ, read + seen.spare)
      end
      local until_ms, tell, rest = blocked_by_long_run(
        windows[index], t, count, length, close, known, most)
      seen[key] = known
      if by then
        seen.spare = seen.spare - (read - before)
      end
      if rest and by then
        return furthest, by
      end
      if rest then
        return nil, {index, number, rest}
      end
      if until_ms then
        blocks(index, number, until_ms, tell)
      end
    end
  end
  return furthest, by
end

-- The first time at or after t that nothing blocks, and 'fits'; or a time before which there is
-- none, and 'more' (ask again from there) or 'unsure' (judging it takes more than one call).
local function leap(windows, sets, blackouts, t)
  local seen = {spare = MOST_FOR_BLOCKED}
  for _ = 1, MOST_LEAPS do
    local open, covered = blackout_end(blackouts, t)
    if open >= covered then
      return open, 'more'
    end
    local furthest = judge(windows, sets, open, nil, seen)
    if not furthest then
      return open, 'unsure'
    end
    if furthest == open then
      return open, 'fits'
    end
    t = furthest
    if read + counted > MOST_READ then
      break
    end
  end
  return t, 'more'
end

-- Judge the time `asked`, or else look for the first slot after it, up to `latest`. Returns the time
-- in ms, or nil and the reply to give.
local function find_slot(windows, sets, blackouts, asked, latest)
  local open, covered = blackout_end(blackouts, asked)
  if asked >= covered then
    return nil, {'searching', asked, 0, 0}
  end
  local by
  if open == asked then
    local furthest
    furthest, by = judge(windows, sets, asked)
    if not furthest then
      return nil, {'unsure', asked}
    end
    if not by then
      return asked
    end
    open = furthest
  end
  local slot, found = leap(windows, sets, blackouts, open)
  if found == 'fits' and slot <= latest then
    return slot
  end
  local word = found == 'fits' and 'refused' or 'searching'
  if found == 'unsure' and slot <= latest then
    word = 'unsure'
  end
  if not by then
    return nil, {word, slot, 0, 0}
  end
  return nil, {word, slot, by[1], by[2], unpack(by[3]())}
end

-- The time of a hold that stands in all these windows; nil when one of them lost it.
local function hold_in_all(windows, hold)
  local at
  for _, window in ipairs(windows) do
    local score = redis.call('ZSCORE', window, hold)
    if not score or (at and tonumber(score) ~= at) then
      return nil
    end
    at = tonumber(score)
  end
  return at
end
