-- needs: base ids
for _ = 1, take_number() do
  local topic, id, answer, digest = take(), take(), take(), take()
  if not known_id(topic, id) then
    remember_id(topic, id, answer, digest)
    age_ids(topic)
  end
end
return 1
