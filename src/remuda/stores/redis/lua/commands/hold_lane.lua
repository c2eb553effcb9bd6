-- Nothing is claimed from a lane until a moment ('': until it is released). The next claim sees to it.
local lane, until_at, why = arg(), arg(), arg()
redis.call('HSET', held_lanes, lane, until_at .. '|' .. why)
reopen_lane(lane)
return 0
