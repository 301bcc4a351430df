-- Lanes with mail, oldest first; those with control mail alone lead.
local agent, limit = take(), take_number()
local found, seen = {}, {}

local function add(conversation)
  if seen[conversation] or #found >= limit then
    return
  end
  seen[conversation] = true
  local lane = lane_name(agent, conversation)
  local state = call('HMGET', P .. 'l:' .. lane, 's', 't', 'v')
  local name = state[1] and state[1] ~= '' and state[1] or 'ready'
  local due = call('ZSCORE', P .. 'd:' .. agent, conversation)
  found[#found + 1] = {
    conversation, call('ZCARD', P .. 'm:' .. lane), state[2] or '0', name, state[3] or '', due or '',
  }
end

for _, conversation in ipairs(call('ZRANGE', P .. 'uc:' .. agent, 0, limit - 1)) do
  if not call('ZSCORE', P .. 'u:' .. agent, conversation) then
    add(conversation)
  end
end
for _, conversation in ipairs(call('ZRANGE', P .. 'u:' .. agent, 0, limit - 1)) do
  add(conversation)
end
return {now_text(), found}
