-- Turns under a rate limit. A bucket is the moment (in microseconds) at which it will be full again.
local rates = prefix .. 'remuda:rates'
local what = arg()

local function limit_of(name)
  local jobs, per = redis.call('HGET', meta, name .. '_jobs'), redis.call('HGET', meta, name .. '_per')
  if not jobs then return nil end
  return tonumber(jobs), tonumber(per)
end

local function base_of(bucket)
  return math.max(now_us, tonumber(redis.call('HGET', rates, bucket) or 0))
end

if what == 'take' then
  local wanted = number_arg()
  local jobs, per = limit_of('queue')
  if not jobs then return wanted > 0 and wanted or 0 end
  local interval, base = per / jobs, base_of('queue')
  local granted = 0
  if wanted > 0 then
    granted = math.max(0, math.min(wanted, math.floor((now_us + per - base) / interval + 1e-6)))
    base = base + interval * granted
  else
    base = math.max(now_us, base + interval * wanted)
  end
  redis.call('HSET', rates, 'queue', string.format('%.3f', base))
  return granted
end

local jobs, per = limit_of('key')
local moments = {}
for i = 1, number_arg() do
  local bucket = 'key:' .. arg()
  if jobs then
    local base = base_of(bucket) + per / jobs
    redis.call('HSET', rates, bucket, string.format('%.3f', base))
    moments[i] = whole(math.ceil(math.max(now_us, base - per) - 1e-3))
  else
    moments[i] = whole(now_us)
  end
end
return moments
