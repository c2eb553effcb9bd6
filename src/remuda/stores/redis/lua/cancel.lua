-- Remove waiting jobs: members of the delayed set, and stream entries that nobody holds. Answers their ids.
local who, members, entries = arg(), number_arg(), number_arg()
for _ = 1, members do remove_delayed(arg()) end
for _ = 1, entries do
  local index = number_arg()
  remove_entry(index, arg())
end
record_removed('cancelled', who)
return messages
