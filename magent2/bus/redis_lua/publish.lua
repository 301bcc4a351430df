-- One plain record with an id: the short way through `write`.
local topic, id, digest, lane, body = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local known = known_id(topic, id)
if known then
  local answer, first = id_parts(known)
  if first ~= digest then
    return {'IdConflict', topic, id, answer}
  end
  return {'repeat', answer}
end
if is_deleted(topic) then
  return {'TopicDeleted', topic}
end

local at = now_text()
local seq = add_entry(topic, id, at, lane, body)
remember_id(topic, id, seq .. ':', digest)
index_entry(topic, seq, lane, at)
notify(topic, news(seq, at, id, '', '', '', '', body))
return {'done', seq}
