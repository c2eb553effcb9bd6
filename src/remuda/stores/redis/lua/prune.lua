-- Entries of the archive from before a moment go, but for those that still hold a unique id. Answers how many jobs.
local before_us, limit = number_arg(), number_arg()
local removed, at = 0, '-'
while removed < limit do
  local page = redis.call('XRANGE', done, at, '+', 'COUNT', 50)
  for _, each in ipairs(page) do
    if tonumber(field_of(each[2], 't')) >= before_us then return removed end
    if removed >= limit then return removed end
    local held_until = tonumber(field_of(each[2], 'u'))
    if not held_until or held_until <= now_us then
      local count = tonumber(field_of(each[2], 'c'))
      redis.call('XDEL', done, each[1])
      redis.call('HINCRBY', meta, 'done', -count)
      redis.call('HINCRBY', meta, 'done_bytes', -#field_of(each[2], 'e'))
      removed = removed + count
    end
  end
  if #page < 50 then return removed end
  at = '(' .. page[#page][1]
end
return removed
