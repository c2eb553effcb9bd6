-- Ended commands that were not published yet, oldest first: id, version and record of each.
local limit, hold_until = number_arg(), arg()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', publishing, '-inf', NOW, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', publishing, id)
  local ended_at = redis.call('HGET', MESSAGE .. id, 'due')
  if ended_at then redis.call('ZADD', to_publish, ended_at, id) end
end
local answer = {}
while #answer < 3 * limit do
  local id = redis.call('ZPOPMIN', to_publish)[1]
  if not id then break end
  local version, record = unpack(redis.call('HMGET', MESSAGE .. id, 'version', 'record'))
  if version then
    redis.call('ZADD', publishing, hold_until, id)
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3] = id, version, record
  else
    sweep(id)
  end
end
write_waiting()
return answer
