-- Pause, or (with an empty moment) go on and wake the workers.
local moment = arg()
if moment ~= '' then
  redis.call('HSET', meta, 'paused', moment)
else
  redis.call('HDEL', meta, 'paused')
  wake_up()
end
return 0
