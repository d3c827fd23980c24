-- The time of every permit, in a ZSET: exact wherever the period begins.
--
-- Included. State ZSET; member: permit id, for further permits of one call id, NUL, number;
-- score: when it was taken, ms
-- Words 1 count   2 length, ms
--
-- A permit counts until exactly one length after it was taken.

-- @include limits_kept.lua

local sliding_log = kept_limit(false)
kinds.sliding_log = sliding_log
