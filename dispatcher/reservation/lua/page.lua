-- Read a page of a window, and whether its shard is complete.
--
-- KEYS  1 epoch HASH   2 window ZSET
-- ARGV  1 from which time on, ms or '-inf'   2 until which time, as ZRANGEBYSCORE takes it
--       3 how many members at its beginning are left out   4 most members
-- Reply two: 1 or 0, the shard is complete or not; list of members, each with its time in ms

return {
  redis.call('EXISTS', KEYS[1]),
  redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[4]),
}
