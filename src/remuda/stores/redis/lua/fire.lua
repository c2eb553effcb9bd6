-- Move specs on from the windows that the caller saw, then go on as `add.lua` does with their jobs. All or nothing:
-- answers {'stale', number of each that was moved by somebody else}, or {'locked'} while a program of another kind
-- runs the schedule. One that knows no fences is kept out by holding its lock ourselves, under a name that all of
-- ours share.
local WIDTH_OF_FIRING = 4 -- key, window, next window ('' for none), number of jobs
local windows, lock = prefix .. 'repeat', prefix .. 'scheduler:lock'
local LOCK_MS = 5000

local holder = redis.call('GET', lock)
if holder and holder ~= OURS then return { 'locked' } end
local firings = number_arg()
local firings_at = next_arg
local stale = { 'stale' }
for i = 0, firings - 1 do
  local at = firings_at + i * WIDTH_OF_FIRING
  local score = redis.call('ZSCORE', windows, ARGV[at])
  if not score or tonumber(score) ~= tonumber(ARGV[at + 1]) then stale[#stale + 1] = i + 1 end
end
if #stale > 1 then return stale end
redis.call('SET', lock, OURS, 'PX', LOCK_MS)
for i = 0, firings - 1 do
  local at = firings_at + i * WIDTH_OF_FIRING
  local key, following = ARGV[at], ARGV[at + 2]
  local spec = prefix .. 'repeat:spec:' .. key
  if following == '' then
    redis.call('ZREM', windows, key)
    redis.call('DEL', spec)
  else
    redis.call('ZADD', windows, following, key)
    redis.call('HINCRBY', spec, 'fired', ARGV[at + 3])
  end
end
next_arg = firings_at + firings * WIDTH_OF_FIRING
