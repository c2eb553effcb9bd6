-- What every script begins with: the queue's keys, and words for what the scripts do with them.
-- KEYS are the same in every script (keys.py), so that a cluster sees all of them on one slot.
local meta, log, leases, extra, delayed, retryable, returned, done, dlq, wake =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local FIRST_STREAM, LAST_STREAM = 11, #KEYS -- by priority, the highest first
local prefix = ARGV[1]
local now_us = tonumber(ARGV[2])
local trail_max = tonumber(ARGV[3])
local events, events_max = prefix .. 'events', tonumber(ARGV[4]) -- ChasquiMQ's own, where it is asked for
local GROUP, OURS, RETURNED = 'default', 'remuda:', 'remuda-returned'
local LONG_IDLE_MS = 2592000000 -- a returned entry looks idle for a month, so that any other program may claim it

local next_arg = 5
local function arg()
  next_arg = next_arg + 1
  return ARGV[next_arg - 1]
end

local function number_arg()
  return tonumber(arg())
end

-- Call `f(first, last)` for stretches of ARGV that fit on Lua's stack, from the next argument on.
local function in_stretches(count, f)
  local last = next_arg + count - 1
  for first = next_arg, last, 1000 do
    f(first, math.min(first + 999, last))
  end
  next_arg = last + 1
end

local function whole(number)
  return string.format('%.0f', number)
end

-- A moment in microseconds as a score of the delayed set, which counts milliseconds.
local function score_of(us)
  return string.format('%.3f', us / 1000)
end

-- One packed entry of `count` transitions: its id says the last one's number and how many there are.
local function record(count, packed)
  local last = redis.call('HINCRBY', meta, 'seq', count)
  redis.call('XADD', log, 'MINID', '~', whole(math.max(last - trail_max, 0)), whole(last) .. '-' .. count,
    'e', packed, 't', whole(math.floor(now_us / 1000)))
end

-- Entries that the caller packed: their number, then for each the count and the bytes.
local function record_args()
  for _ = 1, number_arg() do
    local count = arg()
    record(count, arg())
  end
end

-- The bytes that may follow the first one of a character; the second one's range keeps out what is no character.
local function is_utf8(text)
  local i, length = 1, #text
  while i <= length do
    local first, second = string.byte(text, i, i + 1)
    local more, low, high = 0, 0x80, 0xbf
    if first >= 0xc2 and first < 0xe0 then
      more = 1
    elseif first >= 0xe0 and first < 0xf0 then
      more, low, high = 2, first == 0xe0 and 0xa0 or 0x80, first == 0xed and 0x9f or 0xbf
    elseif first >= 0xf0 and first < 0xf5 then
      more, low, high = 3, first == 0xf0 and 0x90 or 0x80, first == 0xf4 and 0x8f or 0xbf
    elseif first >= 0x80 then
      return false
    end
    if more > 0 and (not second or second < low or second > high) then return false end
    for k = 2, more do
      local byte = string.byte(text, i + k)
      if not byte or byte < 0x80 or byte > 0xbf then return false end
    end
    i = i + more + 1
  end
  return true
end

local function unsigned(text, at, bytes)
  local value = 0
  for i = at, at + bytes - 1 do
    local byte = string.byte(text, i)
    if not byte then return nil end
    value = value * 256 + byte
  end
  return value
end

local INTEGERS = { [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8, [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8 }

local function integer(text, at)
  local kind = string.byte(text, at)
  if not kind then return nil end
  if kind < 0x80 then return kind, at + 1 end
  local bytes = INTEGERS[kind]
  if not bytes then return nil end
  return unsigned(text, at + 1, bytes), at + 1 + bytes
end

-- The id, creation time (ms) and attempt of an envelope; nil where it is not one. wire.py reads the same way.
local function open_envelope(d)
  if not d then return nil end
  local first, kind = string.byte(d, 1, 2)
  if not kind or (first ~= 0x94 and first ~= 0x95) then return nil end
  local at, length
  if kind >= 0xa0 and kind <= 0xbf then
    at, length = 3, kind - 0xa0
  elseif kind == 0xd9 then
    at, length = 4, unsigned(d, 3, 1)
  elseif kind == 0xda then
    at, length = 5, unsigned(d, 3, 2)
  end
  if not length or length == 0 or #d < at + length then return nil end
  local id = string.sub(d, at, at + length - 1)
  if string.find(id, '[%z\1-\31\127-\255]') and not is_utf8(id) then return nil end
  at = at + length
  kind = string.byte(d, at)
  local header = (kind == 0xc4 and 1) or (kind == 0xc5 and 2) or (kind == 0xc6 and 4)
  if not header then return id end
  local size = unsigned(d, at + 1, header)
  if not size then return id end
  local created, attempt
  created, at = integer(d, at + 1 + header + size)
  if not created then return id end
  attempt = integer(d, at)
  return id, created, attempt and math.min(attempt, 2147483647)
end

-- Name and envelope of a member of the delayed set: a little-endian length, the name, the rest.
local function open_member(member)
  local a, b, c, d = string.byte(member, 1, 4)
  if not d then return nil end
  local length = a + b * 256 + c * 65536 + d * 16777216
  if #member < 4 + length then return nil end
  return string.sub(member, 5, 4 + length), string.sub(member, 5 + length)
end

local function stream_of_priority(priority)
  local index = FIRST_STREAM + 2 - (priority or 0)
  if index < FIRST_STREAM or index > LAST_STREAM then index = FIRST_STREAM + 2 end
  return KEYS[index]
end

local function extras_of(id)
  local packed = redis.call('HGET', extra, id)
  if not packed then return nil end
  local fine, opened = pcall(cmsgpack.unpack, packed)
  if not fine or type(opened) ~= 'table' then return {}, packed end
  -- The client will say what is wrong with it; here it must only not be in the way.
  for _, field in ipairs({ 'n', 'p', 's' }) do
    if type(opened[field]) ~= 'number' or opened[field] % 1 ~= 0 then opened[field] = nil end
  end
  return opened, packed
end

local function emit(...)
  if events_max > 0 then redis.call('XADD', events, 'MAXLEN', '~', events_max, '*', ...) end
end

local function emit_waiting(id)
  emit('e', 'waiting', 'id', id, 'ts', whole(math.floor(now_us / 1000)))
end

-- Due members of the delayed set become stream entries, in the order of their time.
local function promote(limit)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', score_of(now_us), 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #due, 2 do
    local member, score = due[i], due[i + 1]
    redis.call('ZREM', delayed, member)
    local name, d = open_member(member)
    if not name then name, d = '', member end
    local id = open_envelope(d)
    local priority
    if id then
      redis.call('DEL', prefix .. 'didx:' .. id)
      local opened = extras_of(id)
      priority = opened and opened.p
      emit_waiting(id)
    end
    redis.call('XADD', stream_of_priority(priority), '*', 'd', d, 'n', name, 'r', score)
  end
end

-- A word to sleepers: the first delayed job is another one, or a pause is over.
local function wake_up()
  redis.call('XADD', wake, 'MAXLEN', '1', '*', 'w', '1')
end

-- Which delayed job comes first, and when: sleepers are woken when the answer changes.
local function first_delayed()
  return table.concat(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES'))
end

-- Transitions as one packed entry, from columns; a column is one value for all, or a list.
local function fold(column)
  if type(column) ~= 'table' then return column end
  for i = 2, #column do
    if column[i] ~= column[1] then return column end
  end
  return column[1]
end

local function pack_transitions(messages, left, entered, dwell, attempt, reason, who)
  local pack = cmsgpack.pack
  return '\154' .. pack(1) .. pack(messages) .. pack(fold(left)) .. pack(entered)
    .. pack(math.floor(now_us / 1000)) .. pack(fold(dwell)) .. pack(fold(attempt)) .. pack(reason) .. pack(who)
    .. '\192'
end

local function record_moves(messages, left, entered, dwell, attempt, reason, who)
  for first = 1, #messages, 5000 do
    local last = math.min(first + 4999, #messages)
    local cut = function(column)
      if type(column) ~= 'table' or #messages <= 5000 then return column end
      local part = {}
      for i = first, last do part[#part + 1] = column[i] end
      return part
    end
    record(last - first + 1,
      pack_transitions(cut(messages), cut(left), entered, cut(dwell), cut(attempt), reason, who))
  end
end

local function dwell_ms(since_us)
  return math.max(0, math.floor(now_us / 1000) - math.floor(since_us / 1000))
end

local function field_of(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return nil
end

-- Whether the group of a stream is there; an answer that needs no group made first.
local function group_exists(stream)
  if redis.call('EXISTS', stream) == 0 then return false end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if group[2] == GROUP then return group end
  end
  return false
end

-- What this holder of a pending entry is, or nil: consumer, idle time (ms), deliveries.
local function pending(stream, entry)
  local found = redis.call('XPENDING', stream, GROUP, entry, entry, 1)[1]
  if not found then return nil end
  return found[2], found[3], found[4]
end
