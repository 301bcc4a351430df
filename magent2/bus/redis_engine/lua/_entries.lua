-- Entries that are there, whoever wrote them; erased ones are kept in `z` as 'seq\nat\nid\nmark\nname' by seq.
local function entry_fields(entry)
  local fields = {}
  for i = 1, #entry[2] - 1, 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  return fields
end

local function entry_seq(entry)
  return string.match(entry[1], '%d+$')
end

local function entry_at(topic, seq)
  return call('XRANGE', P .. 't:' .. topic, '0-' .. seq, '0-' .. seq)[1]
end

local function erased_at(topic, seq)
  return call('ZRANGEBYSCORE', P .. 'z:' .. topic, seq, seq)[1]
end

-- Lets go of what an entry holds elsewhere; the caller takes it from the stream.
local function unhook(topic, seq, fields)
  free_record_blobs(topic, seq)
  local lane = fields['l'] or ''
  local mark = string.byte(lane)
  if (mark == 61 or mark == 45) and #lane > 1 then
    local copies = P .. 'c:' .. string.sub(lane, 2)
    call('SREM', copies, seq .. ' ' .. topic)
    call('SADD', P .. 'stale', topic) -- see scrub.lua
    if mark == 61 then
      call('SADD', copies, '@ ' .. topic) -- the lane may outlive the mail
    end
  end
end

local function drop_entries(topic, ids)
  if #ids > 0 then
    local gone = call('XDEL', P .. 't:' .. topic, unpack(ids))
    call('HINCRBY', P .. 's:' .. topic, 'g', gone)
  end
  return #ids
end

-- Who has the digest of a text can try texts on it; without one the id stands for no body any more.
local function forget_body(topic, seq)
  local entry = entry_at(topic, seq)
  local id = entry and entry_fields(entry)['i'] or ''
  local known = id ~= '' and known_id(topic, id)
  if known then
    call('HSET', P .. 'i:' .. topic, id, (string.gsub(known, ' .*$', ' ')))
  end
  if entry then
    call('SADD', P .. 'stale', topic) -- see scrub.lua
  end
end

-- Whether there was such a record; afterwards it is empty.
local function erase(topic, seq)
  local entry = entry_at(topic, seq)
  if not entry then
    return erased_at(topic, seq) ~= nil
  end
  local fields = entry_fields(entry)
  unhook(topic, seq, fields)
  local mark, name = '-', ''
  if fields['d'] then
    mark, name = 'd', fields['d']
  elseif fields['c'] then
    mark, name = 'c', fields['c']
  end
  -- Another program may have written it, so nothing about it is certain.
  local at = string.match(fields['a'] or '', '^%d+$') or '0'
  local id = string.match(fields['i'] or '', '^[^%c]*$') or ''
  local kept = table.concat({seq, at, id, mark, name}, '\n')
  call('ZADD', P .. 'z:' .. topic, seq, kept)
  drop_entries(topic, {entry[1]})
  return true
end
