local function load_topic()
  local last, floor, deleted, active = take_number(), take(), take(), take()
  local extra = take_extra()
  local head = extra.heads[1]
  local topic = head.topic
  local state, stream = P .. 's:' .. topic, P .. 't:' .. topic
  local gone = last - call('XLEN', stream)
  if floor ~= '0' or gone > 0 then
    call('HSET', state, 'f', floor, 'g', digits(gone))
  end
  if deleted == '1' then
    call('HSET', state, 'x', 1, 'a', active)
    call('SADD', P .. 'kinds', ':deleted')
    call('ZADD', P .. 'k::deleted', active, topic)
    return
  end
  if last > 0 then
    call('XGROUP', 'CREATE', stream, 'load', '0', 'MKSTREAM')
    call('XGROUP', 'DESTROY', stream, 'load')
    call('XSETID', stream, '0-' .. digits(last))
  end
  extra.set_head(head, active)
end

for _ = 1, take_number() do
  load_topic()
end
return 1
