-- Judging one message, shared by reserve.lua and move.lua. Needs rule.lua.

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
