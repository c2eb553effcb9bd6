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
local has_returned = redis.call('HLEN', returned) > 0
-- The transitions as columns. Most jobs were pending and had no attempt: only the others are noted.
local messages, dwells, other_lefts, other_attempts = {}, {}, {}, {}
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

local function dwell_since(ms)
  return ms < now_ms and now_ms - ms or 0
end

local function emit_active(id, name, attempt)
  emit('e', 'active', 'id', id, 'ts', whole(now_ms), 'n', name, 'attempt', attempt + 1)
end

-- What was found in one stream: entry, envelope and name of each, and beside it, for those that have more than
-- that, their place, extras, moment and deliveries.
local function accept(part, entry, d, name, run_at, id, created, attempt, opened, packed, count, since)
  local left_ms = since and math.floor(since / 1000)
  found = found + 1
  if not since then
    left_ms = (opened and opened.s and math.floor(opened.s / 1000)) or created or now_ms
    if opened and redis.call('SREM', retryable, id) == 1 then other_lefts[found] = 'RETRYABLE' end
  end
  messages[found], dwells[found] = id, dwell_since(left_ms)
  if attempt ~= 0 then other_attempts[found] = attempt end
  if events_max > 0 then emit_active(id, name, attempt) end
  local flat, more = part.flat, part.more
  local m = #flat
  flat[m + 1], flat[m + 2], flat[m + 3] = entry, d or false, name
  if packed or run_at or count ~= 1 then
    local k = #more
    more[k + 1], more[k + 2], more[k + 3], more[k + 4] = m / 3, packed or '', run_at or '', count
  end
end

local function take_returned(index, stream, part)
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
        local id, created, attempt = open_envelope(d)
        id, attempt = id or entry, attempt or 0
        local opened, packed
        if has_extras then opened, packed = extras_of(id) end
        local before = count + ((opened and opened.n) or 0)
        if found < limit and (not careful or is_suspect(before, attempt) == only) then
          local place = index .. '/' .. entry
          local since = tonumber(redis.call('HGET', returned, place) or now_us)
          redis.call('HDEL', returned, place)
          redis.call('XCLAIM', stream, GROUP, consumer, 0, entry, 'IDLE', 0, 'RETRYCOUNT', count + 1, 'JUSTID')
          accept(part, entry, d, name, run_at, id, created, attempt, opened, packed, count + 1, since)
        end
      end
    end
    if #page < ask then return end
    at = '(' .. page[#page][1]
  end
end

-- One entry that is not a plain new one; `delivered_before` where it was put back and claimed in the same reading.
local function take_one(index, stream, part, entry, fields, delivered_before)
  local d, name, run_at = read_fields(fields)
  local id, created, attempt = open_envelope(d)
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
    accept(part, entry, d, name, run_at, id, created, attempt, opened, packed, (delivered_before or 0) + 1, since)
  end
end

local function read(stream, count)
  if can_claim and has_returned and not careful then
    -- New ones and those that were put back, which look idle for a month, in one reading.
    return redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'CLAIM', LONG_IDLE_MS / 2,
      'STREAMS', stream, '>')
  end
  return redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
end

-- What nearly every job is: four elements, a short id, and at the end its time (tag and 8 bytes) and an attempt of
-- nought. Its id, and how long it has waited; jobs that were added together share their time. Nil for all others.
local dwell_of = {}
local function open_plain(d)
  local first, kind = byte(d, 1, 2)
  if first ~= 0x94 or not kind or kind <= 0xa0 or kind > 0xbf or byte(d, -1) ~= 0 then return nil end
  local stamp = sub(d, -10, -2)
  local dwell = dwell_of[stamp]
  if not dwell then
    -- The 2 bytes before the id, a payload of 2 at least, the time and the attempt: else it is something else.
    if #d < kind - 146 or byte(stamp, 1) ~= 0xcf or byte(stamp, 2) ~= 0 then return nil end
    dwell = dwell_since(unsigned(stamp, 2, 8))
    dwell_of[stamp] = dwell
  end
  if #d < kind - 146 then return nil end
  return sub(d, 3, kind - 158), dwell
end

local function take_new(index, stream, part)
  local flat = part.flat
  while found < limit do
    local ask = limit - found
    local answered = read(stream, ask)
    if not answered then return end
    local list = answered[1][2]
    local m = #flat
    for i = 1, #list do
      local each = list[i]
      local entry, fields, idle = each[1], each[2], each[3]
      local put_back = idle and idle ~= 0
      local id, dwell
      if not has_extras and not put_back and #fields == 4 and fields[1] == 'd' and fields[3] == 'n' then
        id, dwell = open_plain(fields[2])
      end
      if id then -- nothing to look up: what this loop is for
        found = found + 1
        messages[found], dwells[found] = id, dwell
        flat[m + 1], flat[m + 2], flat[m + 3] = entry, fields[2], fields[4]
        m = m + 3
        if events_max > 0 then emit_active(id, fields[4], 0) end
      else
        take_one(index, stream, part, entry, fields, put_back and each[4] or nil)
        m = #flat
      end
    end
    if #list < ask then return end
  end
end

for _, index in ipairs(order) do
  local stream = KEYS[index]
  if found < limit and redis.call('EXISTS', stream) == 1 then
    local part = { flat = {}, more = {} }
    local known = redis.pcall('XPENDING', stream, GROUP)
    if known.err then
      redis.call('XGROUP', 'CREATE', stream, GROUP, '0')
    elseif has_returned and (careful or not can_claim) then
      take_returned(index, stream, part)
    end
    if not only then take_new(index, stream, part) end
    if #part.flat > 0 then
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3] = index, part.flat, part.more
    elseif not only then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, consumer) -- reading made it, and it holds nothing
    end
  end
end

-- A column with one value for all, but for some.
local function filled(value, others)
  if next(others) == nil then return value end
  local column = {}
  for i = 1, found do column[i] = others[i] or value end
  return column
end

local function name_unreadable_ids_by_entry()
  local n = 0
  for part = 2, #answer, 3 do
    for i = 1, #answer[part], 3 do
      n = n + 1
      if not is_utf8(messages[n]) then messages[n] = answer[part][i] end
    end
  end
end

if found > 0 then
  redis.call('ZADD', leases, lease_until, consumer)
  -- The trail is text. One look at all of them is quicker than one at each.
  if string.find(table.concat(messages), '[\128-\255]') then name_unreadable_ids_by_entry() end
  record_moves(messages, filled('PENDING', other_lefts), 'PROCESSING', dwells, filled(0, other_attempts), nil, who)
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
