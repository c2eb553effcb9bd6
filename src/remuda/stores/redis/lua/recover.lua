-- Put back what dead workers hold: leases that are over, and entries without a lease that were idle too long.
-- Answers the ids. Consumers of ours that hold nothing and were silent for long are forgotten.
-- With `up_to` (a moment) at +inf all that anybody holds is put back.
local limit, who, up_to, timeout_ms, forget_ms, reason =
  number_arg(), arg(), arg(), number_arg(), number_arg(), arg()
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

local function acquired_us(consumer, idle_ms)
  return tonumber(string.match(consumer, '/(%d+)-%x+[~%d]*$') or nil) or now_us - idle_ms * 1000
end

for _, consumer in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', up_to, 'LIMIT', 0, limit)) do
  for index = FIRST_STREAM, LAST_STREAM do
    if group_exists(KEYS[index]) then
      while true do -- a hold is put back whole: its lease stands for all of it
        local page = redis.call('XPENDING', KEYS[index], GROUP, '-', '+', limit, consumer)
        for _, each in ipairs(page) do put_back(index, each[1], acquired_us(consumer, each[3])) end
        if #page == 0 then break end
      end
    end
  end
  redis.call('ZREM', leases, consumer)
  for index = FIRST_STREAM, LAST_STREAM do
    if group_exists(KEYS[index]) then redis.call('XGROUP', 'DELCONSUMER', KEYS[index], GROUP, consumer) end
  end
  if #messages >= limit then break end
end

local is_foreign = false
for index = FIRST_STREAM, LAST_STREAM do
  local stream = KEYS[index]
  if group_exists(stream) then
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
      local name, held, idle = consumer[2], consumer[4], consumer[6]
      local is_ours = string.sub(name, 1, #OURS) == OURS
      is_foreign = is_foreign or (not is_ours and name ~= RETURNED)
      if name == RETURNED or (is_ours and redis.call('ZSCORE', leases, name)) then
        -- nobody's, or a healthy worker's
      elseif held > 0 and #messages < limit then
        local stale = redis.call('XPENDING', stream, GROUP, 'IDLE', timeout_ms, '-', '+', limit - #messages, name)
        for _, each in ipairs(stale) do put_back(index, each[1], acquired_us(name, each[3])) end
      elseif held == 0 and is_ours and idle > forget_ms then
        redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
      end
    end
  end
end
if is_foreign then redis.call('HSET', meta, 'foreign', '1') else redis.call('HDEL', meta, 'foreign') end

if #messages > 0 then
  record_moves(messages, 'PROCESSING', 'PENDING', dwells, attempts, reason, who)
  wake_up()
end
return messages
