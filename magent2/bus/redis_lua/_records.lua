-- A record is a stream entry `0-seq`: i = id ('' when the log assigns it), a = when, l = what it belongs to, p = payload,
-- and where there are any h = headers, d = draft, c = what it closes, b = blobs.
-- l: '=conversation' mail and copy, '~conversation' mail only, '-conversation' copy only, '' neither.
local function add_entry(topic, id, at, lane, body)
  return string.sub(call('XADD', P .. 't:' .. topic, '0-*', 'i', id, 'a', at, 'l', lane, 'p', body), 3)
end

local function full_fields(id, at, lane, body, headers, draft, closes, blobs)
  local fields = {'i', id, 'a', at, 'l', lane, 'p', body}
  for name, value in pairs({h = headers, d = draft, c = closes, b = blobs}) do
    if value ~= '' then
      fields[#fields + 1] = name
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
    list_new(topic, at)
  end
  if lane ~= '' then
    index_copy(topic, seq, lane)
  end
end

-- What a follower that stands just before this record is told, so that it need not read.
local function news(seq, at, id, headers, draft, closes, blobs, body)
  if #body + #draft + #closes > NEWS_MAX_BYTES or string.find(draft .. closes, '\n', 1, true) then
    return seq
  end
  return seq .. '\n' .. at .. '\n' .. id .. '\n' .. headers .. '\n' .. draft .. '\n' .. closes .. '\n' .. blobs .. '\n' .. body
end
