-- Take back the marker of a rebuild that began on another server process: what it has filled in may
-- be lost in part.
--
-- KEYS  1 rebuild STRING: the marker
-- ARGV  1 identity of the server process
-- Reply 1

local marker = redis.call('GET', KEYS[1])
if marker and string.sub(marker, 1, #ARGV[1]) ~= ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
