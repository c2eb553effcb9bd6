-- Dead letters go back with a fresh budget, each of them whole or not at all. Answers the places of those moved.
local who, count = arg(), number_arg()
local moved, messages, dwells = {}, {}, {}
for i = 1, count do
  local entry, id, index, d, name, packed, is_unique, died_us = arg(), arg(), number_arg(), arg(), arg(), arg(), arg(), number_arg()
  local key = prefix .. 'dlid:' .. id
  local lives = is_unique == '1' and redis.call('GET', key) == 'live'
  if not lives and redis.call('XDEL', dlq, entry) == 1 then
    if packed ~= '' then redis.call('HSET', extra, id, packed) end
    if is_unique == '1' then redis.call('SET', key, 'live') end
    redis.call('XADD', KEYS[index], '*', 'd', d, 'n', name, 'r', score_of(now_us))
    redis.call('DEL', prefix .. 'remuda:failed:' .. id)
    moved[#moved + 1] = i
    messages[#messages + 1] = id
    dwells[#dwells + 1] = dwell_ms(died_us)
  end
end
if #moved > 0 then record_moves(messages, 'FAILED', 'PENDING', dwells, 0, 'replay', who) end
return moved
