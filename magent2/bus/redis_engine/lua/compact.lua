-- One page of one closed draft: how many pieces went, and whether to go on.
local topic, min_age, page = take(), take_number(), take_number()
local closed = P .. 'f:' .. topic
local group = call('ZRANGEBYSCORE', closed, '-inf', digits(now_ms() - min_age), 'LIMIT', 0, 1)[1]
if not group then
  return {0, 0}
end

local first, closing, name = string.match(group, '^(%d+) (%d+) (.*)$')
local dropped, ids = 0, {}

local function drop_pieces(found)
  local pieces = {}
  for _, entry in ipairs(found) do
    local fields = entry_fields(entry)
    if fields['d'] == name then
      unhook(topic, entry_seq(entry), fields)
      pieces[#pieces + 1] = entry[1]
      ids[#ids + 1] = fields['i'] ~= '' and fields['i'] or nil
    end
  end
  drop_entries(topic, pieces)
  dropped = dropped + #pieces
end

local function drop_erased()
  for _, kept in ipairs(call('ZRANGEBYSCORE', P .. 'z:' .. topic, first, closing)) do
    local id, piece = string.match(kept, '^%d+\n%d+\n([^\n]*)\n(.*)$')
    if piece == 'd\n' .. name then
      call('ZREM', P .. 'z:' .. topic, kept)
      ids[#ids + 1] = id ~= '' and id or nil
      dropped = dropped + 1
    end
  end
end

local entries = call('XRANGE', P .. 't:' .. topic, '0-' .. first, '0-' .. closing, 'COUNT', page)
drop_pieces(entries)
drop_erased()
outlive(topic, ids)
local at = call('ZSCORE', closed, group)
call('ZREM', closed, group)
if #entries == page then
  local next_seq = digits(tonumber(entry_seq(entries[page])) + 1)
  call('ZADD', closed, at, next_seq .. ' ' .. closing .. ' ' .. name)
end
return {dropped, 1}
