-- Keep what handlers said of their jobs: the last word of progress, and lines. The caller packed all of it with the
-- moment at which it is over; the keys end by themselves too.
local ttl_ms = arg()
for _ = 1, number_arg() do
  local id, far, lines = arg(), arg(), number_arg()
  if far ~= '' then redis.call('SET', prefix .. 'remuda:progress:' .. id, far, 'PX', ttl_ms) end
  if lines > 0 then
    local key = prefix .. 'remuda:lines:' .. id
    in_stretches(lines, function(first, last) redis.call('RPUSH', key, unpack(ARGV, first, last)) end)
    redis.call('PEXPIRE', key, ttl_ms)
  end
end
return 0
