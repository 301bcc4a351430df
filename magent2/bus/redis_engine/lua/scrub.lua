-- The server only marks an entry that is taken out of the middle of a stream; what it said stays in memory and in every
-- dump. So the entries that are left are copied into a new stream, a page at a time, which then takes the place of the old.
-- The seq to go on after, or nothing at the end.
local topic, token, cursor, page = take(), take(), take(), take_number()
local stream, copy = P .. 't:' .. topic, P .. 'T:' .. token

local entries = call('XRANGE', stream, '(0-' .. cursor, '+', 'COUNT', page)
for _, entry in ipairs(entries) do
  call('XADD', copy, entry[1], unpack(entry[2]))
end
if #entries == page then
  call('PEXPIRE', copy, SCRUB_MEMORY_MS)
  return entry_seq(entries[page])
end
local left = call('XLEN', stream)
if call('XLEN', copy) ~= left then -- some went while others were copied
  call('UNLINK', copy)
  return '0'
end
if left > 0 then
  call('XSETID', copy, '0-' .. digits(last_seq(topic)))
  call('PERSIST', copy)
  call('RENAME', stream, copy .. ':old')
  call('RENAME', copy, stream)
  call('UNLINK', copy .. ':old')
end
call('SREM', P .. 'stale', topic)
return false
