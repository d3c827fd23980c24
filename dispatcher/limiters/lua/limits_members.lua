-- The permits of one call as members of a ZSET: their id and, for further ones, id, NUL, number.
--
-- Included by the parts that keep them. A call has at most 1,000, all of one score.

local function members_of(id, n)
  local members = {id}
  for number = 2, n do
    members[number] = id .. '\0' .. number
  end
  return members
end

local function add_members(key, score, id, n)
  local words = {}
  for number, member in ipairs(members_of(id, n)) do
    words[2 * number - 1], words[2 * number] = score, member
  end
  redis.call('ZADD', key, unpack(words))
end

-- How many members the call has whose first one is there.
local function count_members(key, id)
  local n = 1
  while redis.call('ZSCORE', key, id .. '\0' .. n + 1) do
    n = n + 1
  end
  return n
end

local function remove_members(key, id, n)
  return redis.call('ZREM', key, unpack(members_of(id, n)))
end
