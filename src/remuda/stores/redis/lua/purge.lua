-- Remove up to `limit` waiting jobs; how many there were.
local limit, who = number_arg(), arg()
for index = FIRST_STREAM, LAST_STREAM do
  local stream = KEYS[index]
  if redis.call('EXISTS', stream) == 1 and #messages < limit then
    local from = '-'
    local group = group_exists(stream)
    if group then
      for _, each in ipairs(redis.call('XPENDING', stream, GROUP, '-', '+', limit - #messages, RETURNED)) do
        remove_entry(index, each[1])
      end
      for i = 1, #group, 2 do
        if group[i] == 'last-delivered-id' then from = '(' .. group[i + 1] end
      end
    end
    if #messages < limit then
      for _, each in ipairs(redis.call('XRANGE', stream, from, '+', 'COUNT', limit - #messages)) do
        remove_entry(index, each[1])
      end
    end
  end
end
if #messages < limit then
  for _, member in ipairs(redis.call('ZRANGE', delayed, 0, limit - #messages - 1)) do remove_delayed(member) end
end
record_removed('purged', who)
return #messages
