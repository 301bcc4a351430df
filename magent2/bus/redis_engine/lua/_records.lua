-- A record is a stream entry `0-seq`: i = id ('' when the log assigns it), a = when, l = what it belongs to, p = payload,
-- and where there are any h = headers, d = draft, c = what it closes, b = blobs.
-- l: '=conversation' mail and copy, '~conversation' mail only, '-conversation' copy only, '' neither.
local NO_MORE = '\n\n-\n'

-- Headers, blobs, mark, name.
local function more_parts(more)
  return string.match(more, '^([^\n]*)\n([^\n]*)\n(.)\n(.*)$')
end

local function full_fields(id, at, lane, body, more)
  local fields = {'i', id, 'a', at, 'l', lane, 'p', body}
  local headers, blobs, mark, name = more_parts(more == '' and NO_MORE or more)
  for field, value in pairs({h = headers, b = blobs, [mark] = name}) do
    if value ~= '' then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  return fields
end

local function index_copy(topic, seq, lane)
  local mark = string.byte(lane)
  if (mark == 61 or mark == 45) and #lane > 1 then
    call('SADD', P .. 'c:' .. string.sub(lane, 2), seq .. ' ' .. topic)
  end
end

local function index_entry(topic, seq, lane, at)
  if seq == '1' then
    local kind = kind_of(topic)
    if call('ZADD', P .. 'k:' .. kind, 'NX', at, topic) == 1 then
      call('SADD', P .. 'kinds', kind)
    end
  end
  if lane ~= '' then
    index_copy(topic, seq, lane)
  end
end
