-- due: ms, or '' for a lane that waits for no time
local function load_lane()
  local agent, conversation, attempt, due, parked = take(), take(), take(), take(), take()
  local lane = lane_name(agent, conversation)
  drop_lane(agent, conversation)
  local chat, control = false, false
  for _ = 1, take_number() do
    local member = take()
    call('ZADD', P .. 'm:' .. lane, mail_score(member), member)
    if string.byte(member) == CONTROL_MARK then control = true else chat = true end
  end
  index_mail(agent, conversation, lane, chat, control, true)
  if conversation ~= '' then
    call('SADD', P .. 'c:' .. conversation, '@ chat:' .. agent)
  end
  call('HSET', P .. 'l:' .. lane, 't', attempt)
  if parked == '1' then
    call('HSET', P .. 'l:' .. lane, 's', 'parked')
  elseif due ~= '' then
    call('HSET', P .. 'l:' .. lane, 's', 'later')
    call('ZADD', P .. 'd:' .. agent, due, conversation)
  else
    make_ready(agent, conversation, false)
  end
end

for _ = 1, take_number() do
  load_lane()
end
return 1
