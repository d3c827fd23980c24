-- The permits of one call as members of a ZSET: their id and, for further ones, id, NUL, number.
--
-- Included by the parts that keep them. All members of a call have one score; others of that id are
-- left of an older call. Many of them cost few calls of Redis.

local function add_members(key, score, id, n)
  redis.call('ZADD', key, score, id)
  local words = {}
  for number = 2, n do
    words[#words + 1] = score
    words[#words + 1] = id .. '\0' .. number
    if #words == 1000 or number == n then
      redis.call('ZADD', key, unpack(words))
      words = {}
    end
  end
end

-- How many members the call has whose first one has that score. They are numbered without gaps.
local function count_members(key, score, id)
  local function has(number)
    return redis.call('ZSCORE', key, id .. '\0' .. number) == score
  end
  local known, missing = 1, 2
  while has(missing) do
    known, missing = missing, 2 * missing
  end
  while missing - known > 1 do
    local middle = math.floor((known + missing) / 2)
    if has(middle) then
      known = middle
    else
      missing = middle
    end
  end
  return known
end

local function remove_members(key, id, n)
  local found, words = redis.call('ZREM', key, id), {}
  for number = 2, n do
    words[#words + 1] = id .. '\0' .. number
    if #words == 1000 or number == n then
      found = found + redis.call('ZREM', key, unpack(words))
      words = {}
    end
  end
  return found
end
