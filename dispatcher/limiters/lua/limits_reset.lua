-- Forget all permits of limits.
--
-- KEYS  1... all keys of the limits
-- Reply 1

for _, key in ipairs(KEYS) do
  redis.call('DEL', key)
end
return 1
