-- A command's record with its placing, and how it leaves where it is and enters where it goes.
local owners, external = prefix .. 'keys', prefix .. 'delivery_index'
local names = prefix .. 'names' -- members `<name>\0<id>`, all of one score: in the order of the letters
local HEARS = prefix .. 'hears:'
local FIELDS = { 'home', 'lane', 'priority', 'status', 'type', 'device', 'due', 'turn', 'key', 'slot', 'hears',
  'expires', 'airtime', 'externals', 'correlations' }

-- The values after a place, by the names of FIELDS. In one constructor: a table that grows costs several times that.
local function placing_of(values, at)
  return {
    home = values[at + 1] or '', lane = values[at + 2] or '', priority = values[at + 3] or '',
    status = values[at + 4] or '', type = values[at + 5] or '', device = values[at + 6] or '',
    due = values[at + 7] or '', turn = values[at + 8] or '', key = values[at + 9] or '',
    slot = values[at + 10] or '', hears = values[at + 11] or '', expires = values[at + 12] or '',
    airtime = values[at + 13] or '', externals = values[at + 14] or '', correlations = values[at + 15] or '',
  }
end

local NOTHING = placing_of({}, 0)

-- What the store has of an id: its version (0: nothing), and its placing by the names of FIELDS.
local function stored(id)
  local values = redis.call('HMGET', MESSAGE .. id, 'version', 'home', 'lane', 'priority', 'status', 'type',
    'device', 'due', 'turn', 'key', 'slot', 'hears', 'expires', 'airtime', 'externals', 'correlations')
  if not values[1] then return 0, NOTHING end
  return tonumber(values[1]), placing_of(values, 1)
end

-- Out of the set of its home.
local function leave_home(id, was)
  if was.home == LANE then
    count_waiting(was.lane, -1)
    if redis.call('ZREM', QUEUE .. was.lane, id) == 0 and was.turn ~= '' then
      redis.call('ZREM', BEHIND .. was.turn, id)
    end
  elseif was.home == ENDED then
    redis.call('ZREM', to_publish, id)
    redis.call('ZREM', publishing, id)
    redis.call('ZREM', ended, id)
  elseif was.home ~= '' then
    redis.call('ZREM', TIMED .. was.home, id)
  end
end

-- Give up what the command does not have any more where it goes.
local function give_up(id, was, goes)
  if was.slot == '1' and (goes.slot ~= '1' or goes.lane ~= was.lane) then free_slot(was.lane, id) end
  if was.turn ~= '' and was.turn ~= goes.turn then give_up_turn(was.turn, id) end
  if was.key ~= '' and was.key ~= goes.key and redis.call('HGET', owners, was.key) == id then
    redis.call('HDEL', owners, was.key)
  end
  if was.hears ~= '' and was.hears ~= goes.hears then redis.call('ZREM', HEARS .. was.hears, id) end
  if was.status ~= '' and was.status ~= goes.status then redis.call('ZREM', STATUS .. was.status, id) end
  if was.expires ~= '' and was.home ~= ENDED and (goes.expires == '' or goes.home == ENDED) then
    redis.call('ZREM', expiring, id)
  end
end

-- Into the set of its home.
local function enter_home(id, was, goes)
  if goes.home == LANE then
    local rank = rank_of(goes.priority)
    count_waiting(goes.lane, 1)
    if goes.turn == '' or wait_for_turn(goes.turn, id, rank) then
      redis.call('ZADD', QUEUE .. goes.lane, rank, id)
      open_lane(goes.lane)
    end
    return
  end
  redis.call('ZADD', goes.home == ENDED and to_publish or TIMED .. goes.home, goes.due, id)
  -- One that was on its way already has its turn, or stands at the front for it.
  if goes.turn ~= '' and (was.turn ~= goes.turn or was.home == LANE) then go(goes.turn, id) end
end

local function take_hold(id, was, goes)
  if goes.key ~= '' and goes.key ~= was.key then redis.call('HSET', owners, goes.key, id) end
  if goes.hears ~= '' and goes.hears ~= was.hears then redis.call('ZADD', HEARS .. goes.hears, 0, id) end
  if goes.status ~= was.status then redis.call('ZADD', STATUS .. goes.status, 0, id) end
  if goes.expires ~= '' and goes.home ~= ENDED then redis.call('ZADD', expiring, goes.expires, id) end
end

-- The names that it had and those that are new, packed; what it was once called it is called until it is removed.
local function call_by(id, had, more, index)
  local all, known = had == '' and {} or cmsgpack.unpack(had), {}
  for _, name in ipairs(all) do known[name] = true end
  for _, name in ipairs(cmsgpack.unpack(more)) do
    if not known[name] then
      known[name] = true
      all[#all + 1] = name
      redis.call('ZADD', names, 0, name .. '\0' .. id)
      if index then redis.call('HSET', index, name, id) end
    end
  end
  return cmsgpack.pack(all)
end

local function remove(id)
  local version, was = stored(id)
  if version == 0 then return sweep(id) end
  leave_home(id, was)
  give_up(id, was, NOTHING)
  for _, packed in ipairs({ was.externals, was.correlations }) do
    for _, name in ipairs(packed == '' and {} or cmsgpack.unpack(packed)) do
      redis.call('ZREM', names, name .. '\0' .. id)
      if redis.call('HGET', external, name) == id then redis.call('HDEL', external, name) end
    end
  end
  redis.call('DEL', MESSAGE .. id)
end
