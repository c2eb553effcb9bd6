-- The newest ids of some statuses, below an id where one is named ('': from the newest on): a list for each.
local below, count = arg(), arg()
if below ~= '' then below = '(' .. below else below = '+' end
local answer = {}
for i = next_arg, #ARGV do
  answer[#answer + 1] = redis.call('ZREVRANGEBYLEX', prefix .. 'status:' .. ARGV[i], below, '-', 'LIMIT', 0, count)
end
return answer
