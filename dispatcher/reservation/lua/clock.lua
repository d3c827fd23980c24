-- The clock of the server, shared by all scripts that need the present: ms since 1970.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
