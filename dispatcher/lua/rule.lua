-- The reservation rule, shared by reserve.lua and next_slot.lua.
--
-- For a quota of N per W a time t is blocked exactly when some run of N consecutive members
-- s1 <= ... <= sN of the window with sN - s1 < W satisfies sN - W < t < s1 + W. All times are
-- integer milliseconds.

local MOST_LEAPS = 500  -- keeps one call of a script in the low milliseconds

local function exact(ms)
  return string.format('%.0f', ms)
end

-- Until when one quota blocks t, and the run that blocks it; nil when it does not.
local function blocked_until(window, t, count, length)
  local low, high = '(' .. exact(t - length), '(' .. exact(t + length)
  if redis.call('ZCOUNT', window, low, high) < count then
    return nil
  end
  local near = redis.call('ZRANGEBYSCORE', window, low, high, 'WITHSCORES')
  -- The latest tight run reaches furthest, so look from the end.
  for first = #near / 2 - count + 1, 1, -1 do
    local s1 = tonumber(near[2 * first])
    local sn = tonumber(near[2 * (first + count - 1)])
    if sn - s1 < length then
      local run = {}
      for place = first, first + count - 1 do
        run[#run + 1] = near[2 * place - 1]
      end
      return s1 + length, run
    end
  end
  return nil
end

-- The first quota (1-based) that blocks t, with the run that does; nil when t fits.
local function first_block(window, t, quotas)
  for index = 1, #quotas / 2 do
    local until_ms, run = blocked_until(window, t, quotas[2 * index - 1], quotas[2 * index])
    if until_ms then
      return index, run
    end
  end
  return nil
end

-- The first time at or after t that no quota blocks, and true; or, after MOST_LEAPS leaps, a time
-- before which there is none, and false.
local function leap(window, t, quotas)
  for _ = 1, MOST_LEAPS do
    local furthest = t
    for index = 1, #quotas / 2 do
      local until_ms = blocked_until(window, t, quotas[2 * index - 1], quotas[2 * index])
      if until_ms and until_ms > furthest then
        furthest = until_ms
      end
    end
    if furthest == t then
      return t, true
    end
    t = furthest
  end
  return t, false
end

-- ARGV from position `first` on, as numbers: count, length in ms, count, length in ms, ...
local function quotas_from(first)
  local quotas = {}
  for position = first, #ARGV do
    quotas[#quotas + 1] = tonumber(ARGV[position])
  end
  return quotas
end
