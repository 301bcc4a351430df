local owner, limit = take_owner(), take_number()
if call('HGET', owner.key, 'o') ~= owner.token then
  return fenced(owner)
end
return {'done', mail_of(owner.agent, owner.lane, limit)}
