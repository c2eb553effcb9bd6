-- Remove a spec; answers 1 if it was there.
local key = arg()
redis.call('DEL', prefix .. 'repeat:spec:' .. key)
return redis.call('ZREM', prefix .. 'repeat', key)
