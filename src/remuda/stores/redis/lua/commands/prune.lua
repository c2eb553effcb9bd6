-- Published commands that ended before a moment go, then signals that need not be remembered. Answers how many.
local before, limit = arg(), number_arg()
local LOCKS_OVER = 86400000 -- a day, ms: by then what a lane may be ahead of has been earned again
local gone = redis.call('ZRANGEBYSCORE', ended, '-inf', '(' .. before, 'LIMIT', 0, limit)
for _, id in ipairs(gone) do
  redis.call('ZREM', ended, id)
  remove(id)
end
write_waiting()
local forgotten = redis.call('ZRANGEBYSCORE', done_signals, '-inf', NOW, 'LIMIT', 0, limit - #gone)
for _, id in ipairs(forgotten) do redis.call('ZREM', done_signals, id) end

-- What is remembered of lanes in which nothing happens any more.
redis.call('ZREMRANGEBYSCORE', locks, '-inf', score_of(now - LOCKS_OVER))
for _, lane in ipairs(redis.call('ZRANGE', served_lanes, 0, 99)) do
  if redis.call('HEXISTS', lanes, lane) == 0 then
    redis.call('ZREM', served_lanes, lane)
    for _, set in ipairs({ open_lanes, shut_lanes, full_lanes }) do redis.call('ZREM', set, lane) end
  end
end
local held = redis.call('HGETALL', held_lanes)
for i = 1, #held, 2 do
  local till = tonumber(string.match(held[i + 1], '^[^|]*'))
  if till and till <= now then redis.call('HDEL', held_lanes, held[i]) end
end
return #gone + #forgotten
