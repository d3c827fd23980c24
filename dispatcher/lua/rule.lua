-- The reservation rule, shared by all scripts that judge a time.
--
-- For a quota of N per W a time t is blocked exactly when some run of N consecutive members
-- s1 <= ... <= sN of the window with sN - s1 < W satisfies sN - W < t < s1 + W. For a calendar
-- quota of N it is blocked when N members lie in the period of t. All times are integer
-- milliseconds; Lua writes 14 digits, which is exact until the year 5138.
--
-- A judge table in ARGV:
--   number of rule sets, each: size of the rest, longest length, least N,
--                              number of quotas, N and W of each,
--                              number of calendar quotas, each: N, number of bounds, bounds
--   number of skies, each:     size of the rest, end of what bounds and blocks cover,
--                              from and until of each blocked time (quiet hours), sorted
-- A rule set is what one scope is judged by; a sky is what is the same for all scopes of a message.

-- One call reads at most about so many members and counts, so that it stays in the low
-- milliseconds; what takes longer goes on in another call.
local MOST_READ, MOST_LEAPS = 6000, 500
-- Runs up to this long are read as a whole; longer ones are walked over.
local SHORT = 16
-- A refusal names at most so many messages.
local MOST_NAMED = 100
local LEAST_SCAN, MOST_SCAN = 16, 512
local read = 0

local function judge_table(position)
  local sets, skies = {}, {}
  for _, list in ipairs({sets, skies}) do
    local many = tonumber(ARGV[position])
    position = position + 1
    for place = 1, many do
      list[place] = {at = position}
      position = position + 1 + ARGV[position]
    end
  end
  return sets, skies, position
end

local function read_set(set)
  local position = set.at + 3
  local rolling, calendars = {}, {}
  for place = 1, ARGV[position] do
    rolling[place] = {tonumber(ARGV[position + 2 * place - 1]), tonumber(ARGV[position + 2 * place])}
  end
  position = position + 1 + 2 * #rolling
  local many = tonumber(ARGV[position])
  position = position + 1
  for place = 1, many do
    local bounds = {}
    for each = 1, ARGV[position + 1] do
      bounds[each] = tonumber(ARGV[position + 1 + each])
    end
    calendars[place] = {tonumber(ARGV[position]), bounds}
    position = position + 2 + #bounds
  end
  set.rolling, set.calendars = rolling, calendars
end

-- When the blocked time that holds t ends; t itself when none does. And where the sky ends.
local function sky_above(sky, t)
  local last = sky.at + ARGV[sky.at]
  for position = sky.at + 2, last, 2 do
    if t < tonumber(ARGV[position]) then
      break
    end
    t = math.max(t, tonumber(ARGV[position + 1]))
  end
  return t, tonumber(ARGV[sky.at + 1])
end

local function near(window, t, length)
  return redis.call('ZCOUNT', window, '(' .. t - length, '(' .. t + length)
end

local function score_at(window, rank)
  return tonumber(redis.call('ZRANGE', window, rank, rank, 'WITHSCORES')[2])
end

-- Until when a short run blocks t, and the run; nil when none does.
local function blocked_by_short_run(window, t, count, length)
  local around = redis.call(
    'ZRANGEBYSCORE', window, '(' .. t - length, '(' .. t + length, 'WITHSCORES')
  read = read + #around / 2
  -- The latest tight run reaches furthest, so look from the end.
  for first = #around / 2 - count + 1, 1, -1 do
    local s1 = tonumber(around[2 * first])
    local sn = tonumber(around[2 * (first + count - 1)])
    if sn - s1 < length then
      local run = {}
      for place = first, first + count - 1 do
        run[#run + 1] = string.sub(around[2 * place - 1], 1, 16)
      end
      return s1 + length, run
    end
  end
  return nil
end

-- The last tight run that starts at a rank from `lowest` to `highest`: its first time and rank.
local function scan(window, lowest, highest, count, length)
  local starts = redis.call('ZRANGE', window, lowest, highest, 'WITHSCORES')
  local ends = redis.call(
    'ZRANGE', window, lowest + count - 1, highest + count - 1, 'WITHSCORES')
  read = read + #starts
  for place = #starts, 2, -2 do
    if ends[place] - starts[place] < length then
      return tonumber(starts[place]), lowest + place / 2 - 1
    end
  end
  return nil
end

-- The same for runs of any length, by jumps: when the N-span that starts at a member lacks k
-- members, one that starts less than k members earlier lacks some too. `below` is the time up to
-- which starts are still to be looked at, nil for all. Returns until when t is blocked and the
-- run; nil when it is not; nil, nil and where to go on when it took too long.
local function blocked_by_long_run(window, t, count, length, below)
  local lowest = redis.call('ZCOUNT', window, '-inf', t - length)
  local start = redis.call('ZCOUNT', window, '-inf', '(' .. t + length) - count
  if below then
    start = math.min(start, redis.call('ZCOUNT', window, '-inf', below) - 1)
  end
  local width = LEAST_SCAN
  while start >= lowest do
    local s1 = score_at(window, start)
    if read > MOST_READ then
      return nil, nil, s1
    end
    read = read + 3
    local lacking = count - redis.call('ZCOUNT', window, s1, '(' .. s1 + length)
    local first = start
    if lacking > 3 then
      width = LEAST_SCAN
      start = start - lacking
    elseif lacking > 0 then
      -- Short jumps cost more than reading what they would skip.
      local from = math.max(lowest, start - width)
      s1, first = nil, nil
      if from < start then
        s1, first = scan(window, from, start - 1, count, length)
      end
      start = from - 1
      width = math.min(2 * width, MOST_SCAN)
    end
    if lacking <= 0 or (lacking <= 3 and s1) then
      local most = math.min(count, MOST_NAMED)
      local run = redis.call('ZRANGEBYSCORE', window, s1, '+inf', 'LIMIT', 0, most)
      for place, member in ipairs(run) do
        run[place] = string.sub(member, 1, 16)
      end
      return s1 + length, run
    end
  end
  return nil
end

-- Until when a calendar quota blocks t, and who is in its period; nil when it does not.
local function blocked_by_period(window, t, count, bounds)
  for place = 1, #bounds - 1 do
    local from, to = bounds[place], bounds[place + 1]
    if from <= t and t < to then
      read = read + 1
      if redis.call('ZCOUNT', window, from, '(' .. to) < count then
        return nil
      end
      local most = math.min(count, MOST_NAMED)
      local run = redis.call('ZRANGEBYSCORE', window, from, '(' .. to, 'LIMIT', 0, most)
      for each, member in ipairs(run) do
        run[each] = string.sub(member, 1, 16)
      end
      return to, run
    end
  end
  return nil
end

-- Judge t by the rule sets of all scopes; `windows` and `sets` go together. Returns the latest
-- time until which t is blocked (t itself: it fits) and the first that blocks it: place of the
-- scope, place of the quota, run. Or, when it took too long, nil and where to go on: place of the
-- scope, place of the quota, time. `resume` is such a place.
local function judge(windows, sets, t, resume)
  local furthest, by = t, nil
  for place, window in ipairs(windows) do
    local set = sets[place]
    local longest = tonumber(ARGV[set.at + 1])
    local within = near(window, t, longest)
    -- A quota of N can only block where N members are near.
    if within >= tonumber(ARGV[set.at + 2]) and not (resume and place < resume[1]) then
      if not set.rolling then
        read_set(set)
      end
      for number, quota in ipairs(set.rolling) do
        local count, length = quota[1], quota[2]
        local below
        if resume and place == resume[1] then
          if number == resume[2] then
            below = resume[3]
          elseif number < resume[2] then
            count = math.huge
          end
        end
        if within >= count and (length == longest or near(window, t, length) >= count) then
          local short = count <= SHORT and within <= 8 * SHORT
          local blocked = short and blocked_by_short_run or blocked_by_long_run
          local until_ms, run, rest = blocked(window, t, count, length, below)
          if rest and by then
            return furthest, by
          end
          if rest then
            return nil, {place, number, rest}
          end
          if until_ms then
            furthest = math.max(furthest, until_ms)
            by = by or {place, number, run}
          end
        end
      end
      for number, calendar in ipairs(set.calendars) do
        local until_ms, run = blocked_by_period(window, t, calendar[1], calendar[2])
        if until_ms then
          furthest = math.max(furthest, until_ms)
          by = by or {place, #set.rolling + number, run}
        end
      end
    end
  end
  return furthest, by
end

-- The first time at or after t that nothing blocks, and 'fits'; or a time before which there is
-- none, and 'more' (ask again from there) or 'unsure' (judging it takes more than one call).
local function leap(windows, sets, sky, t)
  for _ = 1, MOST_LEAPS do
    local open, covered = sky_above(sky, t)
    if open >= covered then
      return open, 'more'
    end
    local furthest = judge(windows, sets, open)
    if not furthest then
      return open, 'unsure'
    end
    if furthest == open then
      return open, 'fits'
    end
    t = furthest
    if read > MOST_READ then
      break
    end
  end
  return t, 'more'
end
