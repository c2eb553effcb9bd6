-- Commands of some homes whose moment has come, and those of any home past their end; earliest first, each once.
-- Answers id, version and record of each. Nobody else is given one of them before `hold_until`.
local limit, hold_until = number_arg(), arg()
local sets = { { key = expiring } }
for _ = 1, number_arg() do
  local home = arg()
  sets[#sets + 1] = { key = TIMED .. home, home = home }
end

-- By bytes: what `<` says of texts depends on the server's locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function comes_first(a, b)
  if a.at ~= b.at then return a.at < b.at end
  if a.set == b.set then return a.place < b.place end
  return is_before(a.id, b.id)
end

local answer, given, taken = {}, {}, 0

-- One that is due; whether it has been swept away instead.
local function give(each)
  local id = each.id
  local version, record, home = unpack(redis.call('HMGET', MESSAGE .. id, 'version', 'record', 'home'))
  if not version or (each.set.home and each.set.home ~= home) then
    redis.call('ZREM', each.set.key, id)
    if not version then sweep(id) end
    return true
  end
  redis.call('ZADD', expiring, 'XX', 'GT', hold_until, id)
  if home ~= LANE and home ~= ENDED then redis.call('ZADD', TIMED .. home, 'XX', 'GT', hold_until, id) end
  given[id] = true
  taken = taken + 1
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = id, version, record
  return false
end

local has_swept
repeat
  has_swept = false
  local found = {}
  for _, set in ipairs(sets) do
    local page = redis.call('ZRANGEBYSCORE', set.key, '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, limit - taken)
    for i = 1, #page, 2 do
      found[#found + 1] = { id = page[i], at = tonumber(page[i + 1]), set = set, place = i }
    end
  end
  table.sort(found, comes_first)
  for _, each in ipairs(found) do
    if taken >= limit then break end
    if not given[each.id] and give(each) then has_swept = true end
  end
until not has_swept or taken >= limit
write_waiting()
return answer
