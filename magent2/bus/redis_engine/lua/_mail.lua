-- Mail of a lane as a reply, control first: topic, seq, and the entry's fields, what is kept of an erased one, or nothing.
local function mail_of(agent, lane, limit)
  local found = {}
  for _, member in ipairs(call('ZRANGE', P .. 'm:' .. lane, 0, limit - 1)) do
    local topic, seq = mail_topic(agent, member), string.sub(member, 2)
    local entry = entry_at(topic, seq)
    found[#found + 1] = {topic, seq, entry and entry[2] or erased_at(topic, seq) or ''}
  end
  return found
end
