-- Write a spec under its key: its next window in milliseconds, whether one that is there keeps its own, its bytes.
-- Answers 1 if it is new.
local windows = prefix .. 'repeat'
local key, first, keep, spec = arg(), arg(), arg(), arg()
local is_new = not redis.call('ZSCORE', windows, key)
if is_new or keep == '0' then
  redis.call('ZADD', windows, first, key)
  redis.call('DEL', prefix .. 'repeat:spec:' .. key)
end
redis.call('HSET', prefix .. 'repeat:spec:' .. key, 'spec', spec)
return is_new and 1 or 0
