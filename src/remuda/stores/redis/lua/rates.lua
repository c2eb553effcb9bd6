-- Turns under rate limits. A bucket is the moment (in microseconds) at which it will be full again; rate.py has the
-- same sums. The queue's own is a field of `meta`, those of the keys stand in a hash.
local rates = prefix .. 'remuda:rates'
local what = arg()

if what == 'set' then
  for _, name in ipairs({ 'queue', 'key' }) do
    local jobs, per, interval = arg(), arg(), arg()
    local fields = { name .. '_jobs', name .. '_per', name .. '_interval' }
    local before = redis.call('HMGET', meta, unpack(fields))
    -- A new limit does not pay the debts of the old one; the same one again gives no new turns.
    if (before[1] or '') ~= jobs or (before[2] or '') ~= per then
      if name == 'key' then redis.call('DEL', rates) end
      redis.call('HDEL', meta, name .. '_full_at', unpack(fields))
      if jobs ~= '' then
        redis.call('HSET', meta, fields[1], jobs, fields[2], per, fields[3], interval)
      end
    end
  end
  wake_up()
  return 0
end

if what == 'forget' then -- buckets that are full: those that are not there are, too
  for _ = 1, number_arg() do
    local key = arg()
    if tonumber(redis.call('HGET', rates, key) or 0) <= now_us then redis.call('HDEL', rates, key) end
  end
  return 0
end

local function limit_of(name)
  local found = redis.call('HMGET', meta, name .. '_jobs', name .. '_interval')
  if not found[1] then return nil end
  return tonumber(found[1]), tonumber(found[2])
end

if what == 'take' then
  local wanted = number_arg()
  local jobs, interval = limit_of('queue')
  if not jobs then return wanted > 0 and wanted or 0 end
  local base = math.max(now_us, tonumber(redis.call('HGET', meta, 'queue_full_at') or 0))
  local granted = 0
  if wanted > 0 then
    granted = math.max(0, math.min(wanted, math.floor((now_us + interval * jobs - base) / interval)))
    base = base + interval * granted
  else
    base = math.max(now_us, base + interval * wanted)
  end
  redis.call('HSET', meta, 'queue_full_at', whole(base))
  return granted
end

local jobs, interval = limit_of('key')
local moments = {}
for i = 1, number_arg() do
  local key = arg()
  if jobs then
    local base = math.max(now_us, tonumber(redis.call('HGET', rates, key) or 0)) + interval
    redis.call('HSET', rates, key, whole(base))
    moments[i] = whole(math.max(now_us, base - interval * jobs))
  else
    moments[i] = whole(now_us)
  end
end
return moments
