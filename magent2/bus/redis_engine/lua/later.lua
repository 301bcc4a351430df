-- delay in ms, or 'parked'
local owner, delay, refund = take_owner(), take(), take_number()
local records, extra = take_records(), take_extra()

local refusal = check_finish(owner) or check_append(records, extra, 1)
if refusal then
  return refusal
end

local answer = write_append(records, extra, 1)
local attempt = tonumber(call('HGET', owner.key, 't') or 0)
finish(owner, answer, math.max(0, attempt - refund))
-- A lane with a command in it never sleeps: the command may have come while the lane was held.
local first = call('ZRANGE', P .. 'm:' .. owner.lane, 0, 0)[1]
if first and string.byte(first) == CONTROL_MARK then
  delay = '0'
end
if delay == 'parked' then
  call('HSET', owner.key, 's', 'parked')
elseif delay == '0' and first then
  make_ready(owner.agent, owner.conversation, true)
  notify('chat:' .. owner.agent, '')
elseif delay == '0' then
  rest(owner.lane)
else
  call('HSET', owner.key, 's', 'later')
  call('ZADD', P .. 'd:' .. owner.agent, digits(now_ms() + tonumber(delay)), owner.conversation)
end
return {'done', answer}
