-- Write all of the changes or none. Answers the numbers of those that are refused, from 1; or, when all were written,
-- 1 if there may be something new to claim, and 0 if not.
local WIDTH = 3 + #FIELDS -- id, base, record, then the placing by FIELDS
local count = number_arg()
local first_at = next_arg

local stored_placings, keys_now, refused = {}, {}, {}
for i = 0, count - 1 do
  local at = first_at + i * WIDTH
  local id, key = ARGV[at], ARGV[at + 11]
  local version, was = stored(id)
  local owner = false
  if key ~= '' and key ~= was.key then
    owner = keys_now[key]
    if owner == nil then owner = redis.call('HGET', owners, key) end
    -- A key whose owner has no record is nobody's.
    if owner and not keys_now[key] and redis.call('EXISTS', MESSAGE .. owner) == 0 then owner = false end
  end
  if version ~= tonumber(ARGV[at + 1]) or (owner and owner ~= id) then
    refused[#refused + 1] = i + 1
  else
    stored_placings[i] = was
    if was.key ~= '' then keys_now[was.key] = false end
    if key ~= '' then keys_now[key] = id end
  end
end
if #refused > 0 then return refused end

for i = 0, count - 1 do
  local at = first_at + i * WIDTH
  local id, was, goes = ARGV[at], stored_placings[i], placing_of(ARGV, at + 2)
  if goes.due == '' and goes.home ~= LANE then goes.due = NOW end
  leave_home(id, was)
  give_up(id, was, goes)
  if goes.externals ~= was.externals then
    goes.externals = goes.externals == '' and was.externals or call_by(id, was.externals, goes.externals, external)
  end
  if goes.correlations ~= was.correlations then
    goes.correlations = goes.correlations == '' and was.correlations
      or call_by(id, was.correlations, goes.correlations)
  end
  local hash = { 'HSET', MESSAGE .. id, 'version', tonumber(ARGV[at + 1]) + 1, 'record', ARGV[at + 2] }
  for f = 1, #FIELDS do
    local field = FIELDS[f]
    if goes[field] ~= was[field] then
      hash[#hash + 1] = field
      hash[#hash + 1] = goes[field]
    end
  end
  redis.call(unpack(hash))
  take_hold(id, was, goes)
  enter_home(id, was, goes)
end
write_waiting()
next_arg = first_at + count * WIDTH
record_args()
return has_opened and 1 or 0
