-- What goes with a waiting job that is removed: its extras, its place in the lists, its hold on a unique id.
local function forget(id)
  local opened = extras_of(id)
  redis.call('HDEL', extra, id)
  redis.call('DEL', prefix .. 'didx:' .. id)
  redis.call('DEL', prefix .. 'dlid:' .. id) -- whoever made it unique
  local was_retryable = redis.call('SREM', retryable, id) == 1
  return was_retryable and 'RETRYABLE' or 'PENDING', opened
end

local messages, lefts, dwells, attempts = {}, {}, {}, {}

local function note_removed(id, since_us, attempt)
  local left, opened = forget(id)
  local n = #messages + 1
  messages[n], lefts[n], attempts[n] = id, left, attempt or 0
  dwells[n] = dwell_ms(since_us or (opened and opened.s) or now_us)
end

local function remove_delayed(member)
  if redis.call('ZREM', delayed, member) == 0 then return false end
  local _, d = open_member(member)
  local id, created, attempt = open_envelope(d or member)
  id = id or ''
  local opened = extras_of(id)
  note_removed(id, (opened and opened.s) or (created and created * 1000), attempt)
  return true
end

-- A stream entry that nobody holds: unread, or put back.
local function remove_entry(index, entry)
  local stream = KEYS[index]
  local read = redis.call('XRANGE', stream, entry, entry)[1]
  if not read then return false end
  if group_exists(stream) then
    local holder = pending(stream, entry)
    if holder and holder ~= RETURNED then return false end
    if holder then redis.call('XACK', stream, GROUP, entry) end
  end
  redis.call('XDEL', stream, entry)
  local place = index .. '/' .. entry
  local since = tonumber(redis.call('HGET', returned, place) or nil)
  redis.call('HDEL', returned, place)
  local id, created, attempt = open_envelope(field_of(read[2], 'd'))
  id = id or entry
  local opened = extras_of(id)
  note_removed(id, since or (opened and opened.s) or (created and created * 1000), attempt)
  return true
end

local function record_removed(reason, who)
  if #messages > 0 then record_moves(messages, lefts, 'REMOVED', dwells, attempts, reason, who) end
end
