local owner, mail = take_owner(), take_mail()
local records, extra = take_records(), take_extra()

local refusal = check_finish(owner) or check_append(records, extra, 1)
if refusal then
  return refusal
end

local answer = write_append(records, extra, 1)
local any = remove_mail(owner.agent, owner.conversation, owner.lane, mail)
finish(owner, answer, 0)
if any then
  make_ready(owner.agent, owner.conversation, false)
  notify('chat:' .. owner.agent, '')
else
  call('PEXPIRE', owner.key, LANE_MEMORY_MS)
end
return {'done', answer}
