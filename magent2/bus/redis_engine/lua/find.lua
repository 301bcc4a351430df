-- by: 'id' or 'seq'
local topic, by, name = take(), take(), take()
local seq = name
if by == 'id' then
  local known = known_id(topic, name)
  if not known then
    return false
  end
  seq = id_seq(known)
end
local entry = entry_at(topic, seq)
local found = entry and entry[2] or erased_at(topic, seq)
return found and {seq, found}
