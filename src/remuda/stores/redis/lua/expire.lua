-- Other extras, with another expiry, for a job that waits: 1, or 0 if it does not wait, -1 if the extras have changed.
local kind, id, known, packed = arg(), arg(), arg(), arg()
if kind == 'member' then
  if not redis.call('ZSCORE', delayed, arg()) then return 0 end
else
  local stream, entry = KEYS[number_arg()], arg()
  if not redis.call('XRANGE', stream, entry, entry)[1] then return 0 end
  if group_exists(stream) then
    local holder = pending(stream, entry)
    if holder and holder ~= RETURNED then return 0 end
  end
end
if (redis.call('HGET', extra, id) or '') ~= known then return -1 end
if packed ~= '' then redis.call('HSET', extra, id, packed) else redis.call('HDEL', extra, id) end
return 1
