local owner, n, mail = take_owner(), take_number(), take_mail()
local records, extra = take_records(), take_extra()

local state = call('HMGET', owner.key, 'o', 'n', 'g')
if state[1] ~= owner.token then
  return fenced(owner)
end
local seen = tonumber(state[2] or 0)
if n <= seen then
  return {'repeat', n == seen and state[3] or ''}
end
if n > seen + 1 then
  return {'CounterGap', digits(n), digits(seen)}
end
local refusal = check_append(records, extra, 1)
if refusal then
  return refusal
end

local answer = write_append(records, extra, 1)
remove_mail(owner.agent, owner.conversation, owner.lane, mail)
call('HSET', owner.key, 'n', digits(n), 'g', answer)
return {'done', answer}
