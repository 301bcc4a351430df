-- by: 'keep' a number, drop up to 'age' in ms, or 'through' a seq. One page of the oldest records: the floor, and whether to go on.
local topic, by, amount, page = take(), take(), take_number(), take_number()
local state = topic_state(topic)
local stream, erased = P .. 't:' .. topic, P .. 'z:' .. topic
local kind, name = string.match(topic, '^([^:]*):(.*)$')
local is_inbox = kind == 'chat' or kind == 'control'

-- The first seq that unsettled mail keeps, of what is sorted; and how far that is.
local function kept_mail()
  if not is_inbox then
    return nil, 0
  end
  local oldest = call('ZRANGE', P .. (kind == 'control' and 'uc:' or 'u:') .. name, 0, 0, 'WITHSCORES')
  return tonumber(oldest[2]), tonumber(call('HGET', P .. 'q:' .. name, kind) or 0)
end

local function oldest_records()
  local records = {}
  for _, entry in ipairs(call('XRANGE', stream, '-', '+', 'COUNT', page)) do
    local fields = entry_fields(entry)
    local seq, at = tonumber(entry_seq(entry)), tonumber(fields['a']) or 0
    records[#records + 1] = {seq = seq, at = at, id = fields['i'] or '', fields = fields}
  end
  for _, kept in ipairs(call('ZRANGE', erased, 0, page - 1)) do
    local seq, at, id = string.match(kept, '^(%d+)\n(%d+)\n([^\n]*)')
    records[#records + 1] = {seq = tonumber(seq), at = tonumber(at), id = id}
  end
  table.sort(records, function(a, b) return a.seq < b.seq end)
  return records
end

local first_kept, sorted = kept_mail()
local drop = by == 'keep' and call('XLEN', stream) + call('ZCARD', erased) - amount or page
local old = by == 'age' and now_ms() - amount

local function stays(record)
  if old and record.at > old then return true end
  if by == 'through' and record.seq > amount then return true end
  if first_kept and record.seq >= first_kept then return true end
  local lane = record.fields and (record.fields['l'] or '=') or ''
  local mark = string.byte(lane)
  return is_inbox and record.seq > sorted and (mark == 61 or mark == 126)
end

local floor, dropped, entries, ids = state.floor, 0, {}, {}
for _, record in ipairs(oldest_records()) do
  if dropped >= drop or dropped >= page or stays(record) then break end
  dropped = dropped + 1
  floor = record.seq
  if record.id ~= '' then
    ids[#ids + 1] = record.id
  end
  if record.fields then
    unhook(topic, digits(floor), record.fields)
    entries[#entries + 1] = '0-' .. digits(floor)
  end
end
if dropped > 0 then
  drop_entries(topic, entries)
  outlive(topic, ids)
  call('ZREMRANGEBYSCORE', erased, '-inf', digits(floor))
  call('HSET', P .. 's:' .. topic, 'f', digits(floor))
end
return {digits(floor), dropped == page and 1 or 0}
