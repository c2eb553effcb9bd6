-- Put signals into the inbox but for those that are there or were done not long ago. Answers how many are new.
local remember, new = arg(), 0
for at = next_arg, #ARGV, 3 do
  local id = ARGV[at]
  local forgotten_at = redis.call('ZSCORE', done_signals, id)
  if redis.call('HEXISTS', signals, id) == 0 and not (forgotten_at and now < tonumber(forgotten_at)) then
    if forgotten_at then redis.call('ZREM', done_signals, id) end
    local number = whole(redis.call('HINCRBY', meta, 'signals', 1))
    redis.call('HSET', signals, id, number .. ':' .. ARGV[at + 1] .. ':' .. remember .. ':' .. ARGV[at + 2])
    redis.call('ZADD', inbox, number, id)
    new = new + 1
  end
end
return new
