-- Add all of the jobs or none of them. Answers 0, {'full', live} or {'taken', number of each, from 1}.
local max_live = number_arg()
local plain, special = number_arg(), number_arg()
local plain_at = next_arg
local special_at = plain_at + 2 * plain
local WIDTH = 8 -- stream, score ('' for at once), id, extras, is unique, d, n, member

local taken = { 'taken' }
for i = 0, special - 1 do
  local at = special_at + i * WIDTH
  if ARGV[at + 4] == '1' then
    local held = redis.call('GET', prefix .. 'dlid:' .. ARGV[at + 2])
    -- 'live' while the job lives; then the moment until which the id is held; other programs write other words.
    if held and (tonumber(held) == nil or tonumber(held) < 1e15 or tonumber(held) > now_us) then
      taken[#taken + 1] = i + 1
    end
  end
end
if #taken > 1 then return taken end

if max_live >= 0 then
  local live = redis.call('ZCARD', delayed)
  for i = FIRST_STREAM, LAST_STREAM do live = live + redis.call('XLEN', KEYS[i]) end
  if live + plain + special > max_live then return { 'full', live } end
end

next_arg = special_at + special * WIDTH
record_args()
local at_once = plain > 0
for i = 0, special - 1 do at_once = at_once or ARGV[special_at + i * WIDTH + 1] == '' end
if at_once then promote(100) end -- what was due before comes before
local stream = stream_of_priority(0)
for at = plain_at, special_at - 2, 2 do
  redis.call('XADD', stream, '*', 'd', ARGV[at], 'n', ARGV[at + 1])
end
local first = special > 0 and first_delayed()
for i = 0, special - 1 do
  local at = special_at + i * WIDTH
  local score, id, packed, member = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 7]
  if packed ~= '' then redis.call('HSET', extra, id, packed) end
  if ARGV[at + 4] == '1' then redis.call('SET', prefix .. 'dlid:' .. id, 'live') end
  if score == '' then
    redis.call('XADD', KEYS[tonumber(ARGV[at])], '*', 'd', ARGV[at + 5], 'n', ARGV[at + 6])
  else
    redis.call('ZADD', delayed, score, member)
    redis.call('SET', prefix .. 'didx:' .. id, member, 'PX',
      whole(math.max(0, tonumber(score) - now_us / 1000) + 3600000))
  end
end
if special > 0 and first_delayed() ~= first then wake_up() end
return 0
