-- Take permits from logs of hand-overs, for a group, in order.
--
-- KEYS  1 epoch HASH   2... logs, ZSETs of permits; score: time of the hand-over, ms
-- ARGV  1 hold, ms: how long after now a permit may be used
--       2 JSON list, per log: its limits as count, length in ms, count, length in ms, ...
--       3 JSON list, per log: name of the reach in the epoch that says how long it is kept
--       4 JSON list, per request: the 1-based places of its logs in 2
--       5... permit id of each request
-- Reply {'closed'}   the logs are not complete: rebuild first
--       or, per request, two integers: wait in ms (0: the permit is taken), permits left
--
-- A permit enters its logs at now + hold, the latest time its hand-over can happen, and is moved to
-- the real time by settle_permits.lua. So a hand-over never lies later than its score, and counting
-- scores later than now - length never counts too few. A refused request takes nothing; it is told
-- to wait as if all permits in flight were used now.
--
-- Idempotent by permit id: asked again, a permit that was taken is granted again.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'closed'}
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local hold = tonumber(ARGV[1])
local limits, wanted = cjson.decode(ARGV[2]), cjson.decode(ARGV[4])

local function key_of(log)
  return KEYS[1 + log]
end

-- How long a log makes the next permit wait, and how many it would give now.
local function wait_for(log)
  local wait, left = 0, math.huge
  local counts = limits[log]
  for place = 1, #counts, 2 do
    local count, length = counts[place], counts[place + 1]
    local taken = redis.call('ZCOUNT', key_of(log), '(' .. now - length, '+inf')
    left = math.min(left, count - taken)
    if taken >= count then
      local nth = redis.call('ZREVRANGE', key_of(log), count - 1, count - 1, 'WITHSCORES')
      wait = math.max(wait, math.min(tonumber(nth[2]), now) + length - now)
    end
  end
  return wait, left
end

local reply = {}
local touched = {}
for request = 1, #wanted do
  local id, logs = ARGV[4 + request], wanted[request]
  local taken_before = logs[1] and redis.call('ZSCORE', key_of(logs[1]), id)
  local wait, left = 0, math.huge
  for _, log in ipairs(logs) do
    local log_wait, log_left = wait_for(log)
    wait, left = math.max(wait, log_wait), math.min(left, log_left)
  end
  if taken_before then
    wait = 0
  elseif wait == 0 then
    for _, log in ipairs(logs) do
      redis.call('ZADD', key_of(log), now + hold, id)
      touched[log] = true
    end
    left = left - 1
  end
  reply[#reply + 1] = wait
  reply[#reply + 1] = left == math.huge and 0 or math.max(0, left)
end

-- Others may have longer limits on the same log: it is kept as far back as the epoch promises.
local reaches = cjson.decode(ARGV[3])
for log in pairs(touched) do
  local keep = tonumber(redis.call('HGET', KEYS[1], 'reach:' .. reaches[log])) or 0
  for place = 2, #limits[log], 2 do
    keep = math.max(keep, limits[log][place])
  end
  redis.call('ZREMRANGEBYSCORE', key_of(log), '-inf', now - keep)
  redis.call('PEXPIRE', key_of(log), hold + keep)
end
return reply
