-- Id, version and record of those ids that there are; of one status, lane or device alone, where they are named.
local status, lane, device = arg(), arg(), arg()
local function fits(wanted, is)
  return wanted == '' or wanted == is
end
local answer = {}
for i = next_arg, #ARGV do
  local version, record, its_status, its_lane, its_device =
    unpack(redis.call('HMGET', MESSAGE .. ARGV[i], 'version', 'record', 'status', 'lane', 'device'))
  if version and fits(status, its_status) and fits(lane, its_lane) and fits(device, its_device) then
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3] = ARGV[i], version, record
  end
end
return answer
