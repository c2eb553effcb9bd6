-- Members of the delayed set with their scores, in order, from behind one of which the score and the beginning are named.
local score, member, count = arg(), arg(), number_arg()
local CUT = 1024 -- paging.py cuts there too

-- Whether a member stands at or before the named one. Byte by byte, as the set has it: Lua would go by a language.
local function is_passed(each)
  local begins = string.sub(each, 1, CUT)
  for i = 1, math.min(#begins, #member) do
    local its, named = string.byte(begins, i), string.byte(member, i)
    if its ~= named then return its < named end
  end
  return #begins <= #member
end

local low = redis.call('ZCOUNT', delayed, '-inf', '(' .. score)
local high = redis.call('ZCOUNT', delayed, '-inf', score)
while low < high do
  local middle = math.floor((low + high) / 2)
  if is_passed(redis.call('ZRANGE', delayed, middle, middle)[1]) then low = middle + 1 else high = middle end
end
return redis.call('ZRANGE', delayed, low, low + count - 1, 'WITHSCORES')
