for _ = 1, take_number() do
  local agent, chat, control = take(), take(), take()
  call('HSET', P .. 'q:' .. agent, 'chat', chat, 'control', control)
  call('SADD', P .. 'agents', agent)
end
return 1
