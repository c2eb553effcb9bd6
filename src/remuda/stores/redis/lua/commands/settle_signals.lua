-- Signals that are done leave the inbox and are remembered; others are due at a moment.
for _ = 1, number_arg() do
  local id = arg()
  local kept = redis.call('HGET', signals, id)
  if kept then
    local _, _, remember = open_signal(kept)
    redis.call('HDEL', signals, id)
    redis.call('ZREM', inbox, id)
    redis.call('ZREM', taken_signals, id)
    redis.call('ZADD', done_signals, score_of(now + tonumber(remember)), id)
  end
end
for at = next_arg, #ARGV, 2 do
  local id = ARGV[at]
  if redis.call('HEXISTS', signals, id) == 1 then
    redis.call('ZREM', inbox, id)
    redis.call('ZADD', taken_signals, ARGV[at + 1], id)
  end
end
return 0
