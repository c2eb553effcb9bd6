-- Put deliveries back, all or none: where a lease is lost nothing is changed. For each, its deliveries so far;
-- with moments, also what the delayed set needs.
local lost, members = find_lost()
if #lost > 0 then return lost end
local has_ackdel, until_moments = arg() == '1', arg() == '1'
call_with_list(members, 'ZREM', leases)
record_args()
if until_moments then
  ack_and_delete(has_ackdel)
  local first = first_delayed()
  for _ = 1, held_count do
    local score, member, id, packed = arg(), arg(), arg(), arg()
    put_into_delayed(score, member, id, packed)
  end
  if first_delayed() ~= first then wake_up() end
else
  for i = 0, held_count - 1 do
    local index, entry, count = ARGV[held_at + 3 * i], ARGV[held_at + 3 * i + 1], arg()
    redis.call('XCLAIM', KEYS[tonumber(index)], GROUP, RETURNED, 0, entry,
      'IDLE', LONG_IDLE_MS, 'RETRYCOUNT', count, 'JUSTID')
    redis.call('HSET', returned, index .. '/' .. entry, whole(now_us))
  end
  wake_up()
end
return lost
