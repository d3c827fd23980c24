-- Closed until some time. Counts nothing.
--
-- Included. State STRING of that time, ms
-- Words none

local cool_down = {}
kinds.cool_down = cool_down

function cool_down.read(index, at)
  local ends = redis.call('GET', KEYS[index])
  local left = ends and math.max(0, ends - now) or 0
  return {
    kind = cool_down, index = index,
    count = 0, room = left > 0 and 0 or math.huge, left = left
  }, at
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
