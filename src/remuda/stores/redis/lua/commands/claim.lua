-- Take commands off the lanes that are open, one from each in turn, those first that were served longest ago.
-- Answers when a lane with more of them opens ('' when nobody can tell), then id, version and record of each.
local limit, hold_until = number_arg(), arg()
local paces = {}
for i = 1, number_arg() do
  paces[i] = { prefix = arg(), every = number_arg(), duty = number_arg(), burst = number_arg(), slots = number_arg(),
    slot_for = number_arg() }
end
local in_flight = TIMED .. TO_NS
local PAGE = 100
local is_any_held = redis.call('HLEN', held_lanes) > 0
local served = tonumber(redis.call('HGET', meta, 'served') or '0')
local answer, taken = { '' }, 0

local function pace_of(lane)
  for _, pace in ipairs(paces) do
    if string.sub(lane, 1, #pace.prefix) == pace.prefix then return pace end
  end
  return nil
end

-- Until when a lane is held: a moment, math.huge, or nil for one that is not.
local function held_until(lane)
  local held = is_any_held and redis.call('HGET', held_lanes, lane)
  if not held then return nil end
  local till = string.match(held, '^[^|]*')
  if till == '' then return math.huge end
  if tonumber(till) > now then return tonumber(till) end
  redis.call('HDEL', held_lanes, lane)
  return nil
end

local looked_at, in_order = {}, {}
local function look_at(lane, pace)
  local seen = looked_at[lane]
  if seen then return seen end
  seen = { lane = lane, pace = pace, queue = QUEUE .. lane, held = held_until(lane) }
  seen.lock = (pace.every or pace.duty) and tonumber(redis.call('ZSCORE', locks, lane) or nil)
  redis.call('ZREMRANGEBYSCORE', SLOTS .. lane, '-inf', NOW)
  if pace.slots then seen.used = redis.call('ZCARD', SLOTS .. lane) end
  looked_at[lane] = seen
  in_order[#in_order + 1] = seen
  return seen
end

-- When a command may leave a lane, now or later (nil: nobody can tell), and whether it is slots that it lacks.
local function opens(seen)
  local at, is_full = math.max(now, seen.lock or now, seen.held or now), false
  if seen.pace.slots and seen.used >= seen.pace.slots then
    local nth = seen.used - seen.pace.slots
    local ends = redis.call('ZRANGE', SLOTS .. seen.lane, nth, nth, 'WITHSCORES')[2]
    if not ends then return nil, true end
    at, is_full = math.max(at, tonumber(ends)), true
  end
  if at == math.huge then return nil, false end
  return at, is_full
end

-- What a command costs its lane.
local function lock(seen, airtime)
  local pace = seen.pace
  if pace.duty then
    local earned = now - pace.burst
    seen.lock = math.max(seen.lock or earned, earned) + airtime / pace.duty
  elseif pace.every then
    seen.lock = now + pace.every
  else
    return
  end
  seen.lock = tonumber(score_of(seen.lock))
  seen.is_locked = true
end

-- The next command of a lane, on its way; false when there is none. Ids without a record are swept up on the way.
local function take(seen)
  while true do
    local id = redis.call('ZPOPMIN', seen.queue)[1]
    if not id then return false end
    local key = MESSAGE .. id
    local version, record, airtime, home = unpack(redis.call('HMGET', key, 'version', 'record', 'airtime', 'home'))
    if version and home == LANE then
      count_waiting(seen.lane, -1)
      redis.call('HSET', key, 'home', TO_NS, 'due', hold_until, 'slot', '1')
      redis.call('ZADD', in_flight, hold_until, id)
      redis.call('ZADD', SLOTS .. seen.lane, score_of(now + seen.pace.slot_for), id)
      if seen.used then seen.used = seen.used + 1 end
      lock(seen, tonumber(airtime) or 0)
      served = served + 1
      seen.served = served
      taken = taken + 1
      local at = #answer
      answer[at + 1], answer[at + 2], answer[at + 3] = id, version, record
      return true
    elseif not version then
      count_waiting(seen.lane, -1)
      sweep(id)
    end
  end
end

-- Take one from a lane if it is open; whether there may be more for another round.
local function serve(seen)
  local at = opens(seen)
  return at == now and take(seen)
end

-- A lane for which it is time is looked at again.
for _, set in ipairs({ shut_lanes, full_lanes }) do
  for _, lane in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', NOW, 'LIMIT', 0, 1000)) do
    redis.call('ZREM', set, lane)
    redis.call('ZADD', open_lanes, served_of(lane), lane)
  end
end

-- The open lanes that have a pace, in order; no lane changes its set before all are through.
local read, page, page_at = 0, {}, 0
local function next_lane()
  while true do
    if page_at == #page then
      page, page_at = redis.call('ZRANGE', open_lanes, read, read + PAGE - 1), 0
      read = read + #page
      if #page == 0 then return nil end
    end
    page_at = page_at + 1
    local pace = pace_of(page[page_at])
    if pace then return look_at(page[page_at], pace) end
  end
end

local round, has_more_lanes = {}, true
while taken < limit do
  local seen = next_lane()
  if not seen then
    has_more_lanes = false
    break
  end
  if serve(seen) then round[#round + 1] = seen end
end
while taken < limit and #round > 0 do
  local rest = {}
  for _, seen in ipairs(round) do
    if taken >= limit or serve(seen) then rest[#rest + 1] = seen end
  end
  round = rest
end

-- With the limit reached: is there a lane that is open and has more?
local next_at = nil
local function is_open_with_more(seen)
  return opens(seen) == now and redis.call('ZCARD', seen.queue) > 0
end
if taken >= limit then
  for _, seen in ipairs(round) do
    if is_open_with_more(seen) then next_at = now end
  end
  while not next_at and has_more_lanes do
    local seen = next_lane()
    if not seen then break end
    if is_open_with_more(seen) then next_at = now end
  end
end

-- Each lane into the set in which it stands now.
for _, seen in ipairs(in_order) do
  local lane = seen.lane
  if seen.is_locked then redis.call('ZADD', locks, score_of(seen.lock), lane) end
  if seen.served then redis.call('ZADD', served_lanes, seen.served, lane) end
  local at, is_full = opens(seen)
  if redis.call('ZCARD', seen.queue) == 0 or (not at and not is_full) then
    redis.call('ZREM', open_lanes, lane)
  elseif at and at > now then
    redis.call('ZREM', open_lanes, lane)
    redis.call('ZADD', is_full and full_lanes or shut_lanes, score_of(at), lane)
  elseif seen.served then
    redis.call('ZADD', open_lanes, seen.served, lane)
  end
end
if taken > 0 then redis.call('HSET', meta, 'served', whole(served)) end
write_waiting()

-- Else: the first of those that are not.
local function first_to_open(set)
  local from = 0
  while true do
    local found = redis.call('ZRANGE', set, from, from + PAGE - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      if pace_of(found[i]) and redis.call('ZCARD', QUEUE .. found[i]) > 0 then return tonumber(found[i + 1]) end
    end
    if #found < 2 * PAGE then return nil end
    from = from + PAGE
  end
end
if not next_at then
  local shut, full = first_to_open(shut_lanes), first_to_open(full_lanes)
  next_at = shut and full and math.min(shut, full) or shut or full
end
if next_at then answer[1] = score_of(math.max(next_at, now)) end
return answer
