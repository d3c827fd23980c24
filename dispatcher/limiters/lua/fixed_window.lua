-- A count that begins anew: with the first permit after its end, or with the calendar.
--
-- Included. State STRING of two doubles: how many were taken, and the end of the window, ms
-- Words 1 count   2 length, ms
--       or 2 five bounds or more of consecutive windows, ms, as doubles: the present one is among the
--       first four, and further ones give the turns of refused requests
--
-- The state has the end, so that it is exact to the millisecond; the expiry only tidies up.

local fixed_window = {words = 2}
kinds.fixed_window = fixed_window
local length_of_bounds = struct.size('<ddddd')

local function bound(packed, place)
  local instant = struct.unpack('<d', packed, 8 * math.min(place, #packed / 8) - 7)
  return instant
end

-- The place of the first bound from an instant on, else of the last one.
local function place_from(packed, instant)
  local place = 1
  while place < #packed / 8 and bound(packed, place) < instant do
    place = place + 1
  end
  return place
end

function fixed_window.read(key, count, word)
  local length, begins, ends
  if #word >= length_of_bounds then
    local place = place_from(word, now + 1)
    begins, ends = bound(word, math.max(1, place - 1)), bound(word, place)
    if now < begins or now >= ends or place > 5 then
      return nil
    end
  else
    length = tonumber(word)
    ends = now + length
  end
  local value, taken, old_end = redis.call('GET', key), 0, 0
  if value then
    taken, old_end = struct.unpack('<dd', value)
  end
  local open = old_end > now
  return {
    room = open and count - taken or count, ends = open and old_end or ends,
    open = open, length = length, begins = begins, bounds = word
  }
end

function fixed_window.wait(state, n, ahead)
  local further = math.ceil((ahead + n) / state.count) - 1
  if state.length then
    return state.ends - now + further * state.length
  end
  if further == 0 then
    return state.ends - now
  end
  state.ends_at = state.ends_at or place_from(state.bounds, state.ends)
  return bound(state.bounds, state.ends_at + further) - now
end

function fixed_window.take(state, n)
  state.room, state.open = state.room - n, true
  local value = struct.pack('<dd', state.count - state.room, state.ends)
  redis.call('SET', state.key, value, 'PXAT', state.ends)
end

function fixed_window.whole(state)
  return state.open and state.ends - now or 0
end

function fixed_window.back(state, n, _, at)
  local opened = state.begins or state.ends - state.length
  if not state.open or at / 1000 < opened or state.room + n > state.count then
    return 0
  end
  fixed_window.take(state, -n)
  return n
end
