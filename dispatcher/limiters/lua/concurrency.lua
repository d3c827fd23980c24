-- At most so many permits in use at once: each is a hold that ends by itself unless it is renewed.
--
-- Included. State ZSET; member: permit id, for further ones of one call id, NUL, number;
-- score: when its hold ends, ms
-- Words 1 count   2 length of a hold, ms

-- @include sliding_log.lua

kinds.concurrency = kept_limit(true)
