-- Id, version and record of those ids that there are; of one lane or one device alone, where they are named.
local lane, device = arg(), arg()
local answer = {}
for i = next_arg, #ARGV do
  local version, record, its_lane, its_device =
    unpack(redis.call('HMGET', MESSAGE .. ARGV[i], 'version', 'record', 'lane', 'device'))
  if version and (lane == '' or lane == its_lane) and (device == '' or device == its_device) then
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3] = ARGV[i], version, record
  end
end
return answer
