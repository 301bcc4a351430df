-- needs: base ids topics records blobs drafts heads append
local records, conditions, heads = take_records(), take_conditions(), take_heads()
local key = records[1]

local known = known_id(key.topic, key.id)
if known then
  local answer, digest = id_parts(known)
  if digest ~= key.digest then
    return {'IdConflict', key.topic, key.id, answer}
  end
  return {'repeat', answer}
end
local refusal = check_append(records, conditions, heads, 2)
if refusal then
  return refusal
end

key.is_key = true
local answer = table.concat(write_append(records, heads), ',')
remember_id(key.topic, key.id, key.seq .. ':' .. (#records > 1 and answer or ''), key.digest)
return {'done', answer}
