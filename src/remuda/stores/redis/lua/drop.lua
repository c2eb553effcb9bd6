-- Dead letters are removed for good, and that is recorded. Answers the places of those that were there.
local who, reason, count = arg(), arg(), number_arg()
local dropped, messages, dwells, attempts = {}, {}, {}, {}
for i = 1, count do
  local entry, id, died_us, attempt = arg(), arg(), number_arg(), number_arg()
  if redis.call('XDEL', dlq, entry) == 1 then
    local n = #dropped + 1
    dropped[n], messages[n], dwells[n], attempts[n] = i, id, dwell_ms(died_us), attempt
  end
end
if #dropped > 0 then record_moves(messages, 'FAILED', 'REMOVED', dwells, attempts, reason, who) end
return dropped
