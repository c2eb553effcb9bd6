-- For each device the commands that its signals may be for, oldest first: the device's number, then as in owners.lua.
local answer = {}
for i = next_arg, #ARGV do
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'hears:' .. ARGV[i], 0, -1)) do
    local version, record = unpack(redis.call('HMGET', MESSAGE .. id, 'version', 'record'))
    if version then
      local at = #answer
      answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = i - next_arg + 1, id, version, record
    end
  end
end
return answer
