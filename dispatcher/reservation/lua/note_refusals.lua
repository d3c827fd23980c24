-- Count refused submits, and keep the last ones.
--
-- KEYS  1 counts of one hour HASH   2 last refusals LIST, newest first
-- ARGV  1 life of both, ms   2 most refusals that are kept
--       3 how many pairs follow; then each: field of the counts, how many refusals
--       then the refusals to keep, in order
-- Reply how many refusals are kept
--
-- Called again, because its reply was lost, it counts and keeps them twice: these are figures, and
-- nothing is decided by them.

local position = 4 + 2 * tonumber(ARGV[3])
for index = 4, position - 2, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[index], ARGV[index + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
for index = position, #ARGV do
  redis.call('LPUSH', KEYS[2], ARGV[index])
end
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[2]) - 1)
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return redis.call('LLEN', KEYS[2])
