-- Renew leases; answers the places of those that are lost. The others' entries also look fresh to programs
-- that go by idle time.
local lease_until = arg()
local consumers = {}
local lost, members = find_lost()
local is_lost = {}
for _, i in ipairs(lost) do is_lost[i] = true end
local renewed, by_holder = {}, {}
for i = 1, held_count do
  local consumer = arg()
  if not is_lost[i] then
    renewed[#renewed + 1] = lease_until
    renewed[#renewed + 1] = members[i]
    local holder = ARGV[held_at + 3 * (i - 1)] .. ' ' .. consumer
    by_holder[holder] = by_holder[holder] or { stream = KEYS[tonumber(ARGV[held_at + 3 * (i - 1)])], consumer = consumer }
    local list = by_holder[holder]
    list[#list + 1] = ARGV[held_at + 3 * (i - 1) + 1]
  end
end
if #renewed > 0 then call_with_list(renewed, 'ZADD', leases, 'XX') end
for _, list in pairs(by_holder) do
  for first = 1, #list, 1000 do
    local last = math.min(first + 999, #list)
    local command = { 'XCLAIM', list.stream, GROUP, list.consumer, 0 }
    for i = first, last do command[#command + 1] = list[i] end
    command[#command + 1] = 'JUSTID'
    redis.call(unpack(command))
  end
end
return lost
