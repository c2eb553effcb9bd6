-- Put back what dead workers hold: leases that are over, and entries without a lease that were idle too long.
-- Answers the ids. Consumers of ours that hold nothing and were silent for long are forgotten.
local limit, who, timeout_ms, forget_ms = number_arg(), arg(), number_arg(), number_arg()
local messages, dwells, attempts = {}, {}, {}

local function put_back(index, entry, acquired_us)
  local stream = KEYS[index]
  local read = redis.call('XRANGE', stream, entry, entry)[1]
  if not read then
    redis.call('XACK', stream, GROUP, entry) -- somebody deleted it: nothing is left to run
    return
  end
  redis.call('XCLAIM', stream, GROUP, RETURNED, 0, entry, 'IDLE', LONG_IDLE_MS, 'JUSTID')
  redis.call('HSET', returned, index .. '/' .. entry, whole(now_us))
  local id, _, attempt = open_envelope(field_of(read[2], 'd'))
  local n = #messages + 1
  messages[n], dwells[n], attempts[n] = id or entry, dwell_ms(acquired_us), attempt or 0
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', whole(now_us), 'LIMIT', 0, limit)) do
  local index, entry, acquired = string.match(member, '^(%d+)/([%d-]+)/(%d+)')
  redis.call('ZREM', leases, member)
  index = tonumber(index)
  local holder = group_exists(KEYS[index]) and pending(KEYS[index], entry)
  if holder and string.sub(holder, 1, #OURS) == OURS then put_back(index, entry, tonumber(acquired)) end
end

local leased -- entries under a lease, listed only where there is a doubt
local function is_leased(place)
  if not leased then
    leased = {}
    for _, member in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      leased[string.match(member, '^%d+/[%d-]+')] = true
    end
  end
  return leased[place]
end

local function look_at(index, stream, name)
  local idle = redis.call('XPENDING', stream, GROUP, 'IDLE', timeout_ms, '-', '+', limit, name)
  for _, each in ipairs(idle) do
    if #messages < limit and not is_leased(index .. '/' .. each[1]) then
      put_back(index, each[1], now_us - each[3] * 1000)
    end
  end
end

for index = FIRST_STREAM, LAST_STREAM do
  local stream = KEYS[index]
  if group_exists(stream) then
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
      local name, held, idle = consumer[2], consumer[4], consumer[6]
      if name ~= RETURNED and held > 0 then
        look_at(index, stream, name)
      elseif idle > forget_ms and string.sub(name, 1, #OURS) == OURS then
        redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
      end
    end
  end
end

if #messages > 0 then
  record_moves(messages, 'PROCESSING', 'PENDING', dwells, attempts, 'lease_expired', who)
  wake_up()
end
return messages
