-- Turns. Whoever has one stands in `turns`; all others that want it stand behind, in the order of their lane.
-- One that is on its way has its turn whoever else has: where another was first it stands behind at the very front.
local turns, turn_of = prefix .. 'turns', prefix .. 'turn_of'
local BEHIND = prefix .. 'turn_queue:'
local STATUS = prefix .. 'status:'

local function give_turn(turn, id)
  redis.call('HSET', turns, turn, id)
  redis.call('HSET', turn_of, id, turn)
end

-- A turn is free: the next in order gets it, and can be claimed if it waits in its lane.
local function pass_on(turn)
  while true do
    local id = redis.call('ZPOPMIN', BEHIND .. turn)[1]
    if not id then return end
    local home, lane, priority, wants = unpack(redis.call('HMGET', MESSAGE .. id, 'home', 'lane', 'priority', 'turn'))
    if home and wants == turn then
      give_turn(turn, id)
      if home == LANE then
        redis.call('ZADD', QUEUE .. lane, rank_of(priority), id)
        open_lane(lane)
      end
      return
    end
  end
end

local function give_up_turn(turn, id)
  if redis.call('HDEL', turn_of, id) == 1 then
    redis.call('HDEL', turns, turn)
    pass_on(turn)
  else
    redis.call('ZREM', BEHIND .. turn, id)
  end
end

-- An id without a record: nothing may be left that others wait for.
local function sweep(id)
  local turn = redis.call('HGET', turn_of, id)
  if turn then give_up_turn(turn, id) end
  redis.call('ZREM', expiring, id)
  for _, status in ipairs(STATUSES) do redis.call('ZREM', STATUS .. status, id) end
end

-- Who else has a turn, with its home, lane and priority; nil when nobody has.
local function other_holder(turn, id)
  local holder = redis.call('HGET', turns, turn)
  if not holder or holder == id then return nil end
  local home, lane, priority = unpack(redis.call('HMGET', MESSAGE .. holder, 'home', 'lane', 'priority'))
  if home then return holder, home, lane, priority end
  redis.call('HDEL', turn_of, holder)
  return nil
end

local function step_back(turn, holder, lane, priority)
  redis.call('ZREM', QUEUE .. lane, holder)
  redis.call('ZADD', BEHIND .. turn, rank_of(priority), holder)
  redis.call('HDEL', turn_of, holder)
end

-- A command waits in its lane; whether it has its turn.
local function wait_for_turn(turn, id, rank)
  local holder, home, lane, priority = other_holder(turn, id)
  if holder and (home ~= LANE or rank >= rank_of(priority)) then
    redis.call('ZADD', BEHIND .. turn, rank, id)
    return false
  end
  if holder then step_back(turn, holder, lane, priority) end
  give_turn(turn, id)
  return true
end

-- A command is on its way, and has its turn with it.
local function go(turn, id)
  local holder, home, lane, priority = other_holder(turn, id)
  if holder and home ~= LANE then
    redis.call('ZADD', BEHIND .. turn, '-inf', id)
    return
  end
  if holder then step_back(turn, holder, lane, priority) end
  give_turn(turn, id)
end
