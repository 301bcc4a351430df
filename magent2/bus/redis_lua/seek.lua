-- needs: base topics blobs entries
-- One page of the backward scan for an id that is no longer remembered: its seq, or where to go on, or nothing.
local topic, id, start, page = take(), take(), take(), take_number()

local function among_erased()
  for _, kept in ipairs(call('ZRANGE', P .. 'z:' .. topic, 0, -1)) do
    local seq, found = string.match(kept, '^(%d+)\n%d+\n([^\n]*)')
    if found == id then return seq end
  end
end

local seq = start == '+' and among_erased()
if seq then
  return {'found', seq}
end
local entries = call('XREVRANGE', P .. 't:' .. topic, start, '-', 'COUNT', page)
for _, entry in ipairs(entries) do
  if entry_fields(entry)['i'] == id then
    return {'found', entry_seq(entry)}
  end
end
return #entries == page and {'more', entry_seq(entries[page])} or {'none'}
