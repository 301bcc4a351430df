-- needs: base topics blobs entries
-- One page of one closed draft: how many pieces went, and whether to go on.
local topic, min_age, page = take(), take_number(), take_number()
local closed = P .. 'f:' .. topic
local group = call('ZRANGEBYSCORE', closed, '-inf', digits(now_ms() - min_age), 'LIMIT', 0, 1)[1]
if not group then
  return {0, 0}
end

local first, closing, name = string.match(group, '^(%d+) (%d+) (.*)$')
local entries = call('XRANGE', P .. 't:' .. topic, '0-' .. first, '0-' .. closing, 'COUNT', page)
local ids = {}
for _, entry in ipairs(entries) do
  local fields = entry_fields(entry)
  if fields['d'] == name then
    unhook(topic, entry_seq(entry), fields)
    ids[#ids + 1] = entry[1]
  end
end
drop_entries(topic, ids)
local at = call('ZSCORE', closed, group)
call('ZREM', closed, group)
if #entries == page then
  local next_seq = digits(tonumber(entry_seq(entries[page])) + 1)
  call('ZADD', closed, at, next_seq .. ' ' .. closing .. ' ' .. name)
end
local erased = call('ZRANGEBYSCORE', P .. 'z:' .. topic, first, closing)
for _, kept in ipairs(erased) do
  if string.match(kept, '^%d+\n%d+\n[^\n]*\n(.*)$') == 'd\n' .. name then
    call('ZREM', P .. 'z:' .. topic, kept)
    ids[#ids + 1] = kept
  end
end
return {#ids, 1}
