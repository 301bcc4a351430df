local records, extra = take_records(), take_extra()
local key = records[1]
local topic, id, digest = ARGV[key], ARGV[key + 1], ARGV[key + 2]

local known = known_id(topic, id)
if known then
  local answer, first = id_parts(known)
  if first ~= digest then
    return {'IdConflict', topic, id, answer}
  end
  return {'repeat', answer}
end
local refusal = check_append(records, extra, 2)
if refusal then
  return refusal
end

local answer = write_append(records, extra, 2)
remember_id(topic, id, seqs[1] .. ':' .. (#records > 1 and answer or ''), digest)
return {'done', answer}
