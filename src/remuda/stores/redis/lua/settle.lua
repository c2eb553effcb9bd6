-- Write outcomes, all or none: where a lease is lost nothing is changed, and the caller asks again without it.
local lost = find_lost()
if #lost > 0 then return lost end
ack_and_delete(arg() == '1')
end_holds()
record_args()

-- the extras of those that have ended
in_stretches(number_arg(), function(first, last) redis.call('HDEL', extra, unpack(ARGV, first, last)) end)

-- unique ids of those that have ended: free at once, or held until a moment
for _ = 1, number_arg() do
  local key, held_until, ttl_ms = prefix .. 'dlid:' .. arg(), arg(), arg()
  if held_until == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, held_until, 'PX', ttl_ms)
  end
end

-- retries
local retries = number_arg()
if retries > 0 then
  local first = first_delayed()
  for _ = 1, retries do
    local score, member, id, packed = arg(), arg(), arg(), arg()
    put_into_delayed(score, member, id, packed)
    redis.call('SADD', retryable, id)
  end
  if first_delayed() ~= first then wake_up() end
end

-- the archive: packed entries with their count, the moment and the end of what they hold
local archived, done_max, done_bytes_max = number_arg(), number_arg(), number_arg()
local added, added_bytes = 0, 0
for _ = 1, archived do
  local count, packed, held_until = arg(), arg(), arg()
  redis.call('XADD', done, '*', 'e', packed, 'c', count, 't', whole(now_us), 'u', held_until)
  added, added_bytes = added + count, added_bytes + #packed
end
if archived > 0 then
  local kept = redis.call('HINCRBY', meta, 'done', added)
  local bytes = redis.call('HINCRBY', meta, 'done_bytes', added_bytes)
  while kept > done_max or bytes > done_bytes_max do
    local oldest = redis.call('XRANGE', done, '-', '+', 'COUNT', 1)[1]
    if not oldest then break end
    local count, size = tonumber(field_of(oldest[2], 'c')), #field_of(oldest[2], 'e')
    redis.call('XDEL', done, oldest[1])
    kept = redis.call('HINCRBY', meta, 'done', -count)
    bytes = redis.call('HINCRBY', meta, 'done_bytes', -size)
  end
end

-- dead letters, and what the cap takes of the oldest: recorded, for no end is silent
local deads, dlq_max, who = number_arg(), number_arg(), arg()
for _ = 1, deads do
  local fields = number_arg()
  local command = { 'XADD', dlq, '*' }
  for _ = 1, fields do command[#command + 1] = arg() end
  redis.call(unpack(command))
end
if deads > 0 then
  local over = redis.call('XLEN', dlq) - dlq_max
  if over > 0 then
    local messages, dwells, attempts = {}, {}, {}
    for _, each in ipairs(redis.call('XRANGE', dlq, '-', '+', 'COUNT', math.min(over, 1000))) do
      local id, _, attempt = open_envelope(field_of(each[2], 'd'))
      local n = #messages + 1
      messages[n] = id or field_of(each[2], 'source_id') or each[1]
      dwells[n] = dwell_ms(tonumber(field_of(each[2], 'at') or nil) or string.match(each[1], '%d+') * 1000)
      attempts[n] = tonumber(field_of(each[2], 'a') or nil) or attempt or 0
      redis.call('XDEL', dlq, each[1])
    end
    record_moves(messages, 'FAILED', 'REMOVED', dwells, attempts, 'over_the_cap', who)
  end
end

-- results: of what completed and of what failed, each in place of an earlier one of the other kind
for _ = 1, number_arg() do
  local id, failed, value, ttl_ms, over_us = arg(), arg() == '1', arg(), arg(), arg()
  local done_key, failed_key = prefix .. 'result:' .. id, prefix .. 'remuda:failed:' .. id
  redis.call('SET', failed and failed_key or done_key, value, 'PX', ttl_ms)
  redis.call('DEL', failed and done_key or failed_key)
  redis.call('ZADD', prefix .. 'remuda:results', over_us, id)
end

-- ChasquiMQ's events
local told = number_arg()
for _ = 1, told do
  local command = {}
  for i = 1, number_arg() do command[i] = arg() end
  emit(unpack(command))
end
if told > 0 then
  local left = 0
  for index = FIRST_STREAM, LAST_STREAM do left = left + redis.call('XLEN', KEYS[index]) end
  if left == 0 then emit('e', 'drained', 'id', '', 'ts', whole(math.floor(now_us / 1000))) end
end
return 0
