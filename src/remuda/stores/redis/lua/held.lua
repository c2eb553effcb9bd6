-- Shared by the scripts that only the holder of a lease may run. The arguments: how many deliveries, then for
-- each its stream, entry and lease. Answers the places (from 1) of those that are not held any more.
local held_count = number_arg()
local held_at = next_arg
next_arg = held_at + 3 * held_count

local function find_lost()
  local lost, members = {}, {}
  for i = 0, held_count - 1 do members[i + 1] = ARGV[held_at + 3 * i + 2] end
  local is_foreign = {}
  for first = 1, held_count, 1000 do
    local last = math.min(first + 999, held_count)
    local scores = redis.call('ZMSCORE', leases, unpack(members, first, last))
    for i = first, last do
      local index, entry = ARGV[held_at + 3 * (i - 1)], ARGV[held_at + 3 * (i - 1) + 1]
      local gone = not scores[i - first + 1]
      if not gone then
        local stream = KEYS[tonumber(index)]
        if is_foreign[index] == nil then is_foreign[index] = has_foreign_consumer(stream) end
        -- A program that knows nothing of leases may have claimed it, and even finished it.
        if is_foreign[index] then
          local holder = pending(stream, entry)
          gone = not holder or string.sub(holder, 1, #OURS) ~= OURS
          if gone then redis.call('ZREM', leases, members[i]) end
        end
      end
      if gone then lost[#lost + 1] = i end
    end
  end
  return lost, members
end

local function entries_by_stream()
  local by_stream = {}
  for i = 0, held_count - 1 do
    local index = tonumber(ARGV[held_at + 3 * i])
    by_stream[index] = by_stream[index] or {}
    local list = by_stream[index]
    list[#list + 1] = ARGV[held_at + 3 * i + 1]
  end
  return by_stream
end

-- Out of the pending list and out of the stream.
local function ack_and_delete(has_ackdel)
  for index, entries in pairs(entries_by_stream()) do
    local stream = KEYS[index]
    if has_ackdel then
      for first = 1, #entries, 1000 do
        local last = math.min(first + 999, #entries)
        redis.call('XACKDEL', stream, GROUP, 'IDS', last - first + 1, unpack(entries, first, last))
      end
    else
      call_with_list(entries, 'XACK', stream, GROUP)
      call_with_list(entries, 'XDEL', stream)
    end
  end
end

local function put_into_delayed(score, member, id, packed)
  redis.call('ZADD', delayed, score, member)
  redis.call('HSET', extra, id, packed)
  redis.call('SET', prefix .. 'didx:' .. id, member, 'PX',
    whole(math.max(0, tonumber(score) - now_us / 1000) + 3600000))
end
