local found = {}
local leases = call('ZRANGE', P .. 'w', 0, -1, 'WITHSCORES')
for i = 1, #leases, 2 do
  local worker = leases[i]
  local agents = call('HGET', P .. 'v:' .. worker, 'agents') or ''
  found[#found + 1] = {worker, leases[i + 1], agents, call('SCARD', P .. 'x:' .. worker)}
end
return {now_text(), found}
