-- Forget all that was taken from limits.
--
-- KEYS  1... everything they keep
-- Reply 1

for _, key in ipairs(KEYS) do
  redis.call('DEL', key)
end
return 1
