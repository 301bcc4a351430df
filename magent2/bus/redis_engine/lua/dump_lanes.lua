-- Lanes of an agent that hold mail, by name, after a name. Owners are not carried: a held lane counts as ready.
local agent, after, limit = take(), take(), take_number()
local names, seen = {}, {}
for _, index in ipairs({'u:', 'uc:'}) do
  for _, conversation in ipairs(call('ZRANGE', P .. index .. agent, 0, -1)) do
    if not seen[conversation] and '=' .. conversation > after then
      seen[conversation] = true
      names[#names + 1] = conversation
    end
  end
end
table.sort(names)

local found = {}
for i = 1, math.min(limit, #names) do
  local lane = lane_name(agent, names[i])
  local state = call('HMGET', P .. 'l:' .. lane, 's', 't')
  local mail = {}
  for _, member in ipairs(call('ZRANGE', P .. 'm:' .. lane, 0, -1)) do
    mail[#mail + 1] = {mail_topic(agent, member), string.sub(member, 2)}
  end
  local due = call('ZSCORE', P .. 'd:' .. agent, names[i])
  found[i] = {names[i], mail, state[2] or '0', due or '', state[1] == 'parked' and 1 or 0}
end
return found
