-- Forget what is kept beside jobs that other programs have ended.
for _ = 1, number_arg() do forget(arg()) end
for _, place in ipairs(redis.call('HKEYS', returned)) do
  local index, entry = string.match(place, '^(%d+)/(.+)$')
  if index and not redis.call('XRANGE', KEYS[tonumber(index)], entry, entry)[1] then
    redis.call('HDEL', returned, place)
  end
end
return 0
