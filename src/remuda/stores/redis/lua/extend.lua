-- Renew leases; answers the places of those that are lost. Where only a part of a hold is renewed it becomes a hold
-- of its own. The entries also look fresh to programs that go by idle time.
local lease_until = arg()
local lost = find_lost()
local is_lost = {}
for _, place in ipairs(lost) do is_lost[place] = true end
for _, hold in ipairs(holds) do
  local consumer = arg() -- the hold's own, or that of the new one
  local renewed = 0
  for _, part in ipairs(hold) do
    each_stretch(part, function(stream, first, last)
      local command = { 'XCLAIM', stream, GROUP, consumer, 0 }
      for i = first, last do
        if not is_lost[part.before + i - part.first + 1] then command[#command + 1] = ARGV[i] end
      end
      if #command > 5 then
        renewed = renewed + #command - 5
        command[#command + 1] = 'JUSTID'
        redis.call(unpack(command))
      end
    end)
  end
  if renewed > 0 then redis.call('ZADD', leases, lease_until, consumer) end
end
return lost
