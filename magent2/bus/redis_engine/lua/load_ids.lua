for _ = 1, take_number() do
  local topic, id, answer, digest = take(), take(), take(), take()
  if not known_id(topic, id) then
    remember_id(topic, id, answer, digest)
    local seq = id_seq(answer)
    if not entry_at(topic, seq) and not erased_at(topic, seq) then
      outlive(topic, {id})
    end
  end
end
return 1
