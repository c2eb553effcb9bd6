-- Shared by the scripts that only a holder may run. The arguments: whether to look at each entry, how many holds,
-- and for each its consumer and its entries by stream. A hold is what one fetch took, under one lease; its consumer
-- is of its own, so that the pending list says who holds what.
local look_closely = arg() == '1' or redis.call('HEXISTS', meta, 'foreign') == 1
local holds, held_count = {}, 0
for h = 1, number_arg() do
  local hold = { consumer = arg() }
  for s = 1, number_arg() do
    local index, count = number_arg(), number_arg()
    hold[s] = { stream = KEYS[index], index = index, first = next_arg, last = next_arg + count - 1, before = held_count }
    next_arg = next_arg + count
    held_count = held_count + count
  end
  holds[h] = hold
end

-- A hold may have been split by a renewal while an outcome was on its way: its parts are one holder.
local function base(consumer)
  return consumer and string.match(consumer, '^[^~]+')
end

-- The places (from 1) of the deliveries that are not held any more.
local function find_lost()
  local lost = {}
  for _, hold in ipairs(holds) do
    local over_us = redis.call('ZSCORE', leases, hold.consumer)
    -- A program that knows nothing of leases may have claimed what was idle for long, and even finished it.
    local doubtful = over_us and (look_closely or tonumber(over_us) <= now_us)
    if not over_us or doubtful then
      for _, part in ipairs(hold) do
        for i = part.first, part.last do
          if not over_us or base(pending(part.stream, ARGV[i])) ~= base(hold.consumer) then
            lost[#lost + 1] = part.before + i - part.first + 1
          end
        end
      end
    end
  end
  return lost
end

local function each_stretch(part, f)
  for first = part.first, part.last, 1000 do
    f(part.stream, first, math.min(first + 999, part.last))
  end
end

-- Out of the pending list and out of the stream.
local function ack_and_delete(has_ackdel)
  for _, hold in ipairs(holds) do
    for _, part in ipairs(hold) do
      each_stretch(part, function(stream, first, last)
        if has_ackdel then
          redis.call('XACKDEL', stream, GROUP, 'IDS', last - first + 1, unpack(ARGV, first, last))
        else
          redis.call('XACK', stream, GROUP, unpack(ARGV, first, last))
          redis.call('XDEL', stream, unpack(ARGV, first, last))
        end
      end)
    end
  end
end

-- Holds of which nothing is left: their lease goes, and their consumer in each stream where it had entries.
local function end_holds()
  for _ = 1, number_arg() do
    local consumer = arg()
    redis.call('ZREM', leases, consumer)
    for _ = 1, number_arg() do
      local stream = KEYS[number_arg()]
      if #redis.call('XPENDING', stream, GROUP, '-', '+', 1, consumer) == 0 then
        redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, consumer)
      end
    end
  end
end

local function put_into_delayed(score, member, id, packed)
  redis.call('ZADD', delayed, score, member)
  redis.call('HSET', extra, id, packed)
  redis.call('SET', prefix .. 'didx:' .. id, member, 'PX',
    whole(math.max(0, tonumber(score) - now_us / 1000) + 3600000))
end
