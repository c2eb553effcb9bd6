-- A lane is held no more. Answers 1 if there is something in it.
local lane = arg()
redis.call('HDEL', held_lanes, lane)
reopen_lane(lane)
return redis.call('EXISTS', QUEUE .. lane)
