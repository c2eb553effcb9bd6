-- Signals. One that is due stands in the inbox, by its number in the order of arrival; one that was taken, or is for
-- later, stands beside it by its moment. The hash has `<number>:<looks>:<how long to remember, ms>:<body>`.
local signals, inbox, taken_signals = prefix .. 'signals', prefix .. 'inbox', prefix .. 'inbox_taken'
local done_signals = prefix .. 'signals_done' -- by the moment at which they are forgotten

local function open_signal(kept)
  local _, to, number, looks, remember = string.find(kept, '^(%d+):(%d+):([%d.]+):')
  return number, tonumber(looks), remember, string.sub(kept, to + 1)
end
