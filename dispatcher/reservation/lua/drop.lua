-- Give up a hold.
--
-- KEYS  1 pending ZSET   2... window ZSETs
-- ARGV  1 hold
-- Reply 1
--
-- Idempotent.

for index = 2, #KEYS do
  redis.call('ZREM', KEYS[index], ARGV[1])
  redis.call('ZREM', KEYS[1], ARGV[1] .. KEYS[index])
end
return 1
