-- Records in the order of their seqs; one that is there already is passed over.
local function add_at(topic, seq, fields)
  local stream, last = P .. 't:' .. topic, digits(last_seq(topic))
  call('XSETID', stream, '0-' .. digits(tonumber(seq) - 1))
  call('XADD', stream, '0-' .. seq, unpack(fields))
  call('XSETID', stream, '0-' .. last)
  call('HINCRBY', P .. 's:' .. topic, 'g', -1)
end

local function load_record()
  local topic, seq, at, erased = take(), take(), take(), take()
  local id, lane, body, more = take(), take(), take(), take()
  if entry_at(topic, seq) or erased_at(topic, seq) then
    return
  end
  if erased == '1' then
    local _, _, mark, name = more_parts(more == '' and NO_MORE or more)
    call('ZADD', P .. 'z:' .. topic, seq, table.concat({seq, at, id, mark, name}, '\n'))
  else
    add_at(topic, seq, full_fields(id, at, lane, body, more))
    index_copy(topic, seq, lane)
  end
  if more ~= '' then index_more(topic, seq, at, more) end
end

for _ = 1, take_number() do
  load_record()
end
return 1
