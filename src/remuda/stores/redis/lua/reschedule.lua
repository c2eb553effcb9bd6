-- Another moment for a job that waits, in the delayed set or as a stream entry that nobody holds: 1, or 0 if it does
-- not wait there, -1 if its extras have changed.
local kind, id, score, member, known, packed = arg(), arg(), arg(), arg(), arg(), arg()
local first = first_delayed()
local as_known = (redis.call('HGET', extra, id) or '') == known
if kind == 'member' then
  if not redis.call('ZSCORE', delayed, member) then return 0 end
  if not as_known then return -1 end
else
  local index, entry = number_arg(), arg()
  local stream = KEYS[index]
  if not redis.call('XRANGE', stream, entry, entry)[1] then return 0 end
  local holder = group_exists(stream) and pending(stream, entry)
  if holder and holder ~= RETURNED then return 0 end
  if not as_known then return -1 end
  if holder then
    -- Its deliveries would be forgotten with the entry: the caller wrote them into the extras.
    redis.call('XACK', stream, GROUP, entry)
    redis.call('HDEL', returned, index .. '/' .. entry)
  end
  redis.call('XDEL', stream, entry)
end
if packed ~= '' then redis.call('HSET', extra, id, packed) else redis.call('HDEL', extra, id) end
redis.call('ZADD', delayed, score, member)
redis.call('SET', prefix .. 'didx:' .. id, member, 'PX',
  whole(math.max(0, tonumber(score) - now_us / 1000) + 3600000))
if first_delayed() ~= first then wake_up() end
return 1
