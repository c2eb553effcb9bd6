-- Put deliveries back, all or none: where a lease is lost nothing is changed. For each, its deliveries so far;
-- with moments, what the delayed set needs instead.
local lost = find_lost()
if #lost > 0 then return lost end
local has_ackdel, until_moments = arg() == '1', arg() == '1'
if until_moments then
  ack_and_delete(has_ackdel)
else
  for _, hold in ipairs(holds) do
    for _, part in ipairs(hold) do
      for i = part.first, part.last do
        redis.call('XCLAIM', part.stream, GROUP, RETURNED, 0, ARGV[i],
          'IDLE', LONG_IDLE_MS, 'RETRYCOUNT', arg(), 'JUSTID')
        redis.call('HSET', returned, part.index .. '/' .. ARGV[i], whole(now_us))
      end
    end
  end
end
end_holds()
record_args()
local first = first_delayed()
if until_moments then
  for _ = 1, held_count do
    local score, member, id, packed = arg(), arg(), arg(), arg()
    put_into_delayed(score, member, id, packed)
  end
end
if not until_moments or first_delayed() ~= first then wake_up() end
return lost
