-- A topic as a reply: name, last, floor, deleted, active, then the head's names and texts.
local function describe(topic)
  local state = topic_state(topic)
  local active = state.active or call('ZSCORE', P .. 'k:' .. kind_of(topic), topic) or '0'
  local reply = {topic, state.last, state.floor, state.deleted, active}
  for _, text in ipairs(call('HGETALL', P .. 'h:' .. topic)) do
    reply[#reply + 1] = text
  end
  return reply
end
