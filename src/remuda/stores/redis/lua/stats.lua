-- A queue in numbers: what is in the streams and who holds it, what is delayed, what has ended, and of each
-- stream the first entry that nobody has read (for how long it has waited).
local live, held, back = 0, 0, 0
local firsts = {}
for index = FIRST_STREAM, LAST_STREAM do
  local stream = KEYS[index]
  if redis.call('EXISTS', stream) == 1 then
    live = live + redis.call('XLEN', stream)
    local group = group_exists(stream)
    local from = '-'
    if group then
      local summary = redis.call('XPENDING', stream, GROUP)
      held = held + summary[1]
      for _, consumer in ipairs(summary[4] or {}) do
        if consumer[1] == RETURNED then
          back = back + tonumber(consumer[2])
          local entry = redis.call('XPENDING', stream, GROUP, '-', '+', 1, RETURNED)[1]
          if entry then firsts[#firsts + 1] = redis.call('XRANGE', stream, entry[1], entry[1])[1] end
        end
      end
      for i = 1, #group, 2 do
        if group[i] == 'last-delivered-id' then from = '(' .. group[i + 1] end
      end
    end
    firsts[#firsts + 1] = redis.call('XRANGE', stream, from, '+', 'COUNT', 1)[1]
  end
end
local first_of_delayed = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
return {
  live, held, back,
  redis.call('ZCARD', delayed), redis.call('ZCOUNT', delayed, '(' .. score_of(now_us), '+inf'),
  redis.call('SCARD', retryable),
  redis.call('HGET', meta, 'done') or '0', redis.call('XLEN', dlq),
  redis.call('HEXISTS', meta, 'paused'),
  first_of_delayed[2] or '', firsts,
}
