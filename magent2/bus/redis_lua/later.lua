-- needs: base ids topics records blobs drafts heads append lanes owner
-- delay in ms, or 'parked'
local owner, delay, refund = take_owner(), take(), take_number()
local records, conditions, heads = take_records(), take_conditions(), take_heads()

local refusal = check_finish(owner) or check_append(records, conditions, heads, 1)
if refusal then
  return refusal
end

local answer = table.concat(write_append(records, heads), ',')
local attempt = tonumber(call('HGET', owner.key, 't') or 0)
finish(owner, answer, math.max(0, attempt - refund))
if delay == 'parked' then
  call('HSET', owner.key, 's', 'parked')
elseif delay == '0' then
  make_ready(owner.agent, owner.conversation, owner.lane, true)
  notify('chat:' .. owner.agent, '')
else
  call('HSET', owner.key, 's', 'later')
  call('ZADD', P .. 'd:' .. owner.agent, digits(now_ms() + tonumber(delay)), owner.conversation)
end
return {'done', answer}
