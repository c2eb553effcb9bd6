-- Lanes. One with something to claim stands in one of three sets: open (in the order of service), shut (until a
-- moment), full (until a slot is free). A lane that is held without an end stands in none.
local open_lanes, shut_lanes, full_lanes = prefix .. 'open_lanes', prefix .. 'shut_lanes', prefix .. 'full_lanes'
local lanes, held_lanes = prefix .. 'lanes', prefix .. 'held_lanes'
local locks, served_lanes = prefix .. 'lock_queue', prefix .. 'served_lanes'
local SLOTS = prefix .. 'rate_limit:'

local placed_lanes, has_opened = {}, false
local waiting = {} -- by how many each lane has grown

-- Lanes that were served longer ago come first; a new one comes after all of them.
local function served_of(lane)
  local served = redis.call('ZSCORE', served_lanes, lane)
  if not served then
    served = redis.call('HGET', meta, 'served') or '0'
    redis.call('ZADD', served_lanes, served, lane)
  end
  return served
end

-- Something is in a lane. If it is in none of the sets the next claim looks whether it is open indeed.
local function open_lane(lane)
  has_opened = true
  if placed_lanes[lane] then return end
  placed_lanes[lane] = true
  if redis.call('ZSCORE', open_lanes, lane) or redis.call('ZSCORE', shut_lanes, lane)
    or redis.call('ZSCORE', full_lanes, lane) then return end
  redis.call('ZADD', open_lanes, served_of(lane), lane)
end

-- What keeps a lane from being open has changed: the next claim looks at it again. An empty one is dropped then.
local function reopen_lane(lane)
  redis.call('ZREM', shut_lanes, lane)
  redis.call('ZREM', full_lanes, lane)
  placed_lanes[lane] = nil
  open_lane(lane)
end

local function free_slot(lane, id)
  if redis.call('ZREM', SLOTS .. lane, id) == 1 and redis.call('ZSCORE', full_lanes, lane) then
    reopen_lane(lane)
  end
end

local function count_waiting(lane, number)
  waiting[lane] = (waiting[lane] or 0) + number
end

local function write_waiting()
  for lane, number in pairs(waiting) do
    if number ~= 0 and redis.call('HINCRBY', lanes, lane, number) <= 0 then redis.call('HDEL', lanes, lane) end
  end
end
