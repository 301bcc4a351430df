local worker, lease = take(), take_number()
if not call('ZSCORE', P .. 'w', worker) then
  return 0
end
call('ZADD', P .. 'w', digits(now_ms() + lease), worker)
return 1
