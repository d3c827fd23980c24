-- Give up a hold.
--
-- KEYS  1 pending ZSET   2... window ZSETs
-- ARGV  1 hold
-- Reply 1
--
-- Idempotent.

for place = 2, #KEYS do
  redis.call('ZREM', KEYS[place], ARGV[1])
  redis.call('ZREM', KEYS[1], ARGV[1] .. KEYS[place])
end
return 1
