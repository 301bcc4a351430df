local oldest, page = take_number(), take_number()
local names = call('ZRANGEBYSCORE', P .. 'loose', '-inf', digits(now_ms() - oldest), 'LIMIT', 0, page)
for _, name in ipairs(names) do
  call('UNLINK', P .. 'b:' .. name)
  call('ZREM', P .. 'loose', name)
  call('ZREM', P .. 'blobs', name)
end
return #names
