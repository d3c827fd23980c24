-- The reservation rule, shared by reserve.lua and next_slot.lua.
--
-- For a quota of N per W a time t is blocked exactly when some run of N consecutive members
-- s1 <= ... <= sN of the window with sN - s1 < W satisfies sN - W < t < s1 + W. All times are
-- integer milliseconds; Lua writes 14 digits, which is exact until the year 5138.

-- A search stops after so many leaps or so many members read and goes on in another call, so that
-- one call stays in the low milliseconds. Judging one time reads at most all members near it.
local MOST_LEAPS, MOST_READ = 500, 5000
local read = 0

-- ARGV from position `first` on, as numbers: count, length in ms, count, length in ms, ...
-- and the longest of the lengths.
local function quotas_from(first)
  local quotas, longest = {}, 0
  for position = first, #ARGV do
    quotas[position - first + 1] = tonumber(ARGV[position])
  end
  for place = 2, #quotas, 2 do
    longest = math.max(longest, quotas[place])
  end
  return quotas, longest
end

-- How many members lie within less than `length` of t.
local function near(window, t, length)
  return redis.call('ZCOUNT', window, '(' .. t - length, '(' .. t + length)
end

-- Until when one quota blocks t, and the run that blocks it; nil when it does not.
local function blocked_until(window, t, count, length)
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
        run[#run + 1] = around[2 * place - 1]
      end
      return s1 + length, run
    end
  end
  return nil
end

-- The latest time until which a quota blocks t, with the first quota (1-based) that does and its
-- run; t itself when it fits every quota.
local function judge(window, t, quotas, longest)
  local furthest, blocker, blocking = t, nil, nil
  local within = near(window, t, longest)
  for place = 1, #quotas, 2 do
    local count, length = quotas[place], quotas[place + 1]
    -- A quota of N can only block where N members are near.
    if within >= count and (length == longest or near(window, t, length) >= count) then
      local until_ms, run = blocked_until(window, t, count, length)
      if until_ms then
        furthest = math.max(furthest, until_ms)
        if not blocker then
          blocker, blocking = (place + 1) / 2, run
        end
      end
    end
  end
  return furthest, blocker, blocking
end

-- The first time at or after t that no quota blocks, and true; or, when the search was long, a
-- time before which there is none, and false.
local function leap(window, t, quotas, longest)
  for _ = 1, MOST_LEAPS do
    local furthest = judge(window, t, quotas, longest)
    if furthest == t then
      return t, true
    end
    t = furthest
    if read > MOST_READ then
      break
    end
  end
  return t, false
end
