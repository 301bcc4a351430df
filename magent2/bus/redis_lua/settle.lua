-- needs: base ids topics records blobs drafts heads append lanes owner
local owner, mail = take_owner(), take_mail()
local records, conditions, heads = take_records(), take_conditions(), take_heads()

local refusal = check_finish(owner) or check_append(records, conditions, heads, 1)
if refusal then
  return refusal
end

local answer = table.concat(write_append(records, heads), ',')
remove_mail(owner.agent, owner.conversation, owner.lane, mail)
finish(owner, answer, 0)
if call('EXISTS', P .. 'm:' .. owner.lane) == 1 then
  make_ready(owner.agent, owner.conversation, owner.lane, false)
  notify('chat:' .. owner.agent, '')
else
  rest(owner.lane)
end
return {'done', answer}
