-- What every script of the commands begins with: the fleet's keys (command_keys.py), and words for them.
-- All keys carry one hash tag, so those that are made from the prefix lie on the same slot as KEYS.
local meta, log = KEYS[1], KEYS[2]
local prefix = ARGV[1]
local NOW, now = ARGV[2], tonumber(ARGV[2]) -- ms on the store's clock, with the microseconds behind the point
local trail_max = tonumber(ARGV[3])
local MESSAGE, QUEUE, TIMED = prefix .. 'device_message:', prefix .. 'queue:', prefix .. 'queue_'
local expiring = prefix .. 'queue_expiring'
local to_publish, publishing, ended = prefix .. 'queue_ended', prefix .. 'queue_publishing', prefix .. 'ended'
local LANE, TO_NS, ENDED = 'lane', 'in_flight_to_ns', 'ended' -- homes

local next_arg = 4
local function arg()
  next_arg = next_arg + 1
  return ARGV[next_arg - 1]
end

local function number_arg()
  return tonumber(arg())
end

local function whole(number)
  return string.format('%.0f', number)
end

-- A moment as a score: to the microsecond, so that the same moment is the same score everywhere.
local function score_of(ms)
  return string.format('%.3f', ms)
end

-- Where a command stands in its lane, and among those that want its turn: the lowest comes first.
local function rank_of(priority)
  return -tonumber(priority)
end

-- The trail's entries, packed by the caller: their number, then for each the count and the bytes.
-- An entry's id says the last transition's number and how many there are, as in the trail of a queue.
local function record_args()
  for _ = 1, number_arg() do
    local count = arg()
    local last = redis.call('HINCRBY', meta, 'seq', count)
    redis.call('XADD', log, 'MINID', '~', whole(math.max(last - trail_max, 0)), whole(last) .. '-' .. count,
      'e', arg(), 't', whole(math.floor(now)))
  end
end
