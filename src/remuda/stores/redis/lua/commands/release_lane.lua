-- A lane is held no more. Answers 1 if there is something to claim in it.
local lane = arg()
redis.call('HDEL', held_lanes, lane)
redis.call('ZREM', shut_lanes, lane)
redis.call('ZREM', full_lanes, lane)
if redis.call('EXISTS', QUEUE .. lane) == 0 then return 0 end
open_lane(lane)
return 1
