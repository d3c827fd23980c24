-- Goes before a script of a dispatcher whose time a test moves: its TIME is that of the test, and its
-- keys expire by it.
--
-- The server keeps the expiry of such a key as FACTOR times its instant. So none comes in the time of
-- the machine, and the milliseconds that pass between two commands do not change it.
--
-- KEYS  those of the script; one whose time is over is deleted
-- ARGV  those of the script, then seconds and microseconds of the present, which are taken away
-- Reply none: the script follows.

local redis = (function(server)
  local FACTOR, EARLIEST = 64, 1e13
  local call = server.call
  local seconds, micros = string.match(ARGV[#ARGV], '(%d+) (%d+)')
  ARGV[#ARGV] = nil
  local now = seconds * 1000 + math.floor(micros / 1000)

  local function expiry(key)
    local left = call('PTTL', key)
    if left < 0 then return nil, left end
    local time = call('TIME')
    local at = time[1] * 1000 + math.floor(time[2] / 1000) + left
    if at < EARLIEST then return nil, left end
    return math.floor(at / FACTOR + 0.5)
  end

  local function kept(at)
    return string.format('%.0f', math.floor(at) * FACTOR)
  end

  local function expire_at(key, at)
    if at <= now then return call('DEL', key) end
    return call('PEXPIREAT', key, kept(at))
  end

  local commands = {
    TIME = function() return {seconds, micros} end,
    PEXPIRE = function(key, life) return expire_at(key, now + life) end,
    PEXPIREAT = function(key, at) return expire_at(key, tonumber(at)) end,
    PTTL = function(key)
      local at, left = expiry(key)
      return at and at - now or left
    end,
    SET = function(...)
      local words = {...}
      for index = 3, #words - 1 do
        if words[index] == 'PX' then
          words[index], words[index + 1] = 'PXAT', kept(now + words[index + 1])
          break
        elseif words[index] == 'PXAT' then
          words[index + 1] = kept(words[index + 1])
          break
        end
      end
      return call('SET', unpack(words))
    end,
  }

  for _, key in ipairs(KEYS) do
    local at = expiry(key)
    if at and at < now then call('DEL', key) end
  end

  return setmetatable({
    call = function(name, ...)
      local command = commands[name]
      if command then return command(...) end
      return call(name, ...)
    end,
  }, {__index = server})
end)(redis)

