-- Closed until some time. Counts nothing.
--
-- Included. State STRING of that time, ms
-- Words none

local cool_down = {words = 0}
kinds.cool_down = cool_down

function cool_down.read(key)
  local ends = redis.call('GET', key)
  local left = ends and math.max(0, ends - now) or 0
  return {room = left > 0 and 0 or math.huge, left = left}
end

function cool_down.wait(state)
  return state.left
end

function cool_down.take()
end

function cool_down.whole(state)
  return state.left
end

function cool_down.back()
  return 0
end
