-- Acquire up to `limit` due jobs under one lease, level by level; what was returned comes before what is new.
-- Answers the entries found (per level), and where the streams end if that was all there is.
local limit, consumer, who = number_arg(), arg(), arg()
local lease_until = arg()
local delivered, only, can_claim = number_arg(), arg() == '1', arg() == '1'
local order = {} -- of the streams
for i = 1, LAST_STREAM - FIRST_STREAM + 1 do order[i] = number_arg() end
local careful = delivered < 2147483647 -- suspects are told apart

if redis.call('HEXISTS', meta, 'paused') == 1 then return { {}, {} } end
promote(500)

local has_extras = redis.call('HLEN', extra) > 0
local messages, lefts, dwells, attempts, entries = {}, {}, {}, {}, {}
local found, answer = 0, {}
local now_ms = math.floor(now_us / 1000)
local byte, sub = string.byte, string.sub

local function is_suspect(deliveries, attempt)
  return deliveries >= delivered and deliveries > attempt
end

-- The fields of an entry: envelope, name, and when it was due if that was not at once.
local function read_fields(list)
  if #list == 4 and list[1] == 'd' and list[3] == 'n' then return list[2], list[4] end
  local fields = {}
  for i = 1, #list, 2 do fields[list[i]] = list[i + 1] end
  return fields.d, fields.n or '', fields.r
end

-- `open_envelope`, quicker for what nearly every job is: four elements, a short id, an early attempt. After the id
-- (2 bytes before it) come at least a payload of 2 bytes, a time of 9 and an attempt of 1.
local function open(d)
  if d then
    local first, kind = byte(d, 1, 2)
    if kind and first == 0x94 and kind > 0xa0 and kind <= 0xbf and #d >= kind - 146 then
      local tag, zero, b2, b3, b4, b5, b6, b7, b8, attempt = byte(d, -10, -1)
      if tag == 0xcf and zero == 0 and attempt < 0x80 then
        return sub(d, 3, kind - 158),
          ((((((b2 * 256 + b3) * 256 + b4) * 256 + b5) * 256 + b6) * 256 + b7) * 256) + b8, attempt
      end
    end
  end
  return open_envelope(d)
end

local function note(entry, id, name, left, left_ms, attempt)
  found = found + 1
  if events_max > 0 then
    emit('e', 'active', 'id', id, 'ts', whole(now_ms), 'n', name, 'attempt', attempt + 1)
  end
  entries[found], messages[found], lefts[found], attempts[found] = entry, id, left, attempt
  dwells[found] = left_ms < now_ms and now_ms - left_ms or 0
end

local function accept(flat, entry, d, name, run_at, id, created, attempt, opened, packed, count, since)
  local left, left_ms = 'PENDING', since and math.floor(since / 1000)
  if not since then
    left_ms = (opened and opened.s and math.floor(opened.s / 1000)) or created or now_ms
    if opened and redis.call('SREM', retryable, id) == 1 then left = 'RETRYABLE' end
  end
  note(entry, id, name, left, left_ms, attempt)
  local m = #flat
  flat[m + 1], flat[m + 2], flat[m + 3] = entry, d or false, name
  flat[m + 4] = (packed or run_at or count ~= 1) and { packed or '', run_at or '', count } or false
end

local function take_returned(index, stream, flat)
  local at = '-'
  while found < limit do
    local ask = careful and 100 or math.min(limit - found, 1000)
    local page = redis.call('XPENDING', stream, GROUP, at, '+', ask, RETURNED)
    if #page == 0 then return end
    for _, each in ipairs(page) do
      local entry, count = each[1], each[4]
      local read = redis.call('XRANGE', stream, entry, entry)[1]
      if not read then
        redis.call('XACK', stream, GROUP, entry) -- somebody deleted it: nothing is left to run
        redis.call('HDEL', returned, index .. '/' .. entry)
      else
        local d, name, run_at = read_fields(read[2])
        local id, created, attempt = open(d)
        id, attempt = id or entry, attempt or 0
        local opened, packed
        if has_extras then opened, packed = extras_of(id) end
        local before = count + ((opened and opened.n) or 0)
        if found < limit and (not careful or is_suspect(before, attempt) == only) then
          local place = index .. '/' .. entry
          local since = tonumber(redis.call('HGET', returned, place) or now_us)
          redis.call('HDEL', returned, place)
          redis.call('XCLAIM', stream, GROUP, consumer, 0, entry, 'IDLE', 0, 'RETRYCOUNT', count + 1, 'JUSTID')
          accept(flat, entry, d, name, run_at, id, created, attempt, opened, packed, count + 1, since)
        end
      end
    end
    if #page < ask then return end
    at = '(' .. page[#page][1]
  end
end

-- One entry that is not a plain new one; `delivered_before` where it was put back and claimed in the same reading.
local function take_one(index, stream, flat, entry, fields, delivered_before)
  local d, name, run_at = read_fields(fields)
  local id, created, attempt = open(d)
  id, attempt = id or entry, attempt or 0
  local opened, packed
  if has_extras then opened, packed = extras_of(id) end
  local before = (opened and opened.n) or 0
  if careful and is_suspect(before, attempt) then
    redis.call('XCLAIM', stream, GROUP, RETURNED, 0, entry, 'IDLE', LONG_IDLE_MS, 'RETRYCOUNT', 0, 'JUSTID')
    redis.call('SREM', retryable, id)
    redis.call('HSET', returned, index .. '/' .. entry, whole((opened and opened.s) or now_us))
  else
    local since
    if delivered_before then
      local place = index .. '/' .. entry
      since = tonumber(redis.call('HGET', returned, place) or now_us)
      redis.call('HDEL', returned, place)
    end
    accept(flat, entry, d, name, run_at, id, created, attempt, opened, packed, (delivered_before or 0) + 1, since)
  end
end

local function read(stream, count)
  if can_claim and not careful then
    -- New ones and those that were put back, which look idle for a month, in one reading.
    return redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'CLAIM', LONG_IDLE_MS / 2,
      'STREAMS', stream, '>')
  end
  return redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
end

local function take_new(index, stream, flat)
  while found < limit do
    local ask = limit - found
    local answered = read(stream, ask)
    if not answered then return end
    local list = answered[1][2]
    local m = #flat
    for i = 1, #list do
      local entry, fields = list[i][1], list[i][2]
      local put_back = list[i][3] and tonumber(list[i][3]) > 0
      local d = fields[2]
      local id, created, attempt
      if not has_extras and not put_back and #fields == 4 and fields[1] == 'd' and fields[3] == 'n' then
        id, created, attempt = open(d)
      end
      if attempt then -- a plain job, and nothing to look up: what this loop is for
        note(entry, id, fields[4], 'PENDING', created, attempt)
        flat[m + 1], flat[m + 2], flat[m + 3], flat[m + 4] = entry, d, fields[4], false
        m = m + 4
      else
        take_one(index, stream, flat, entry, fields, put_back and tonumber(list[i][4]) or nil)
        m = #flat
      end
    end
    if #list < ask then return end
  end
end

for _, index in ipairs(order) do
  local stream = KEYS[index]
  if found < limit and redis.call('EXISTS', stream) == 1 then
    local flat = {}
    local known = redis.pcall('XPENDING', stream, GROUP)
    if known.err then
      redis.call('XGROUP', 'CREATE', stream, GROUP, '0')
    elseif careful or not can_claim then
      take_returned(index, stream, flat)
    end
    if not only then take_new(index, stream, flat) end
    if #flat > 0 then
      answer[#answer + 1] = index
      answer[#answer + 1] = flat
    elseif not only then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, consumer) -- reading made it, and it holds nothing
    end
  end
end

if found > 0 then
  redis.call('ZADD', leases, lease_until, consumer)
  if string.find(table.concat(messages), '[\128-\255]') then
    for i = 1, found do
      if not is_utf8(messages[i]) then messages[i] = entries[i] end -- the trail is text
    end
  end
  record_moves(messages, lefts, 'PROCESSING', dwells, attempts, nil, who)
end

local ends = {}
if found < limit then
  for index = FIRST_STREAM - 1, LAST_STREAM do -- the wake stream, then the jobs'
    local key = KEYS[index]
    local last = '0-0'
    if redis.call('EXISTS', key) == 1 then
      local facts = redis.call('XINFO', 'STREAM', key)
      for i = 1, #facts, 2 do
        if facts[i] == 'last-generated-id' then last = facts[i + 1] end
      end
    end
    ends[#ends + 1] = last
  end
end
return { answer, ends }
