-- Who holds each key: the key's number, from 1, then id, version and record.
local keys = prefix .. 'keys'
local answer = {}
for i = next_arg, #ARGV do
  local id = redis.call('HGET', keys, ARGV[i])
  local version, record
  if id then version, record = unpack(redis.call('HMGET', MESSAGE .. id, 'version', 'record')) end
  if version then
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = i - next_arg + 1, id, version, record
  end
end
return answer
