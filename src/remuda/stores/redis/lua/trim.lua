-- Forget entries of the trail that end at or before a number; how many transitions.
local up_to = number_arg()
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', log, '(' .. whole(up_to + 1) .. '-0', '-', 'COUNT', 1)[1]
if not first or not last then return 0 end
local first_end, first_count = string.match(first[1], '(%d+)-(%d+)')
local last_end = string.match(last[1], '%d+')
redis.call('XTRIM', log, 'MINID', '=', whole(up_to + 1))
return tonumber(last_end) - (tonumber(first_end) - tonumber(first_count))
