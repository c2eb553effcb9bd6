-- Ended commands whose subscribers know: they are kept by the moment of their end until they are pruned.
for i = next_arg, #ARGV do
  local id = ARGV[i]
  if redis.call('ZREM', to_publish, id) + redis.call('ZREM', publishing, id) > 0 then
    local ended_at = redis.call('HGET', MESSAGE .. id, 'due')
    if ended_at then redis.call('ZADD', ended, ended_at, id) end
  end
end
return 0
