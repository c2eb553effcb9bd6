-- Signals that are due, in the order in which they came: id, looks and body of each.
local limit, hold_until = number_arg(), arg()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', taken_signals, '-inf', NOW, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', taken_signals, id)
  local kept = redis.call('HGET', signals, id)
  if kept then redis.call('ZADD', inbox, (open_signal(kept)), id) end
end
local answer = {}
while #answer < 3 * limit do
  local id = redis.call('ZPOPMIN', inbox)[1]
  if not id then break end
  local kept = redis.call('HGET', signals, id)
  if kept then
    local number, looks, remember, body = open_signal(kept)
    redis.call('HSET', signals, id, number .. ':' .. (looks + 1) .. ':' .. remember .. ':' .. body)
    redis.call('ZADD', taken_signals, hold_until, id)
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3] = id, looks, body
  end
end
return answer
