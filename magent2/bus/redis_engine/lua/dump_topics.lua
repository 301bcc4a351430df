-- Topics of every kind, deleted ones included, in the order (kind, active, name) after a place in it.
-- A topic that becomes active meanwhile moves ahead and is seen again; none is passed over.
local after_kind, after_at, after_topic, limit = take(), take(), take(), take_number()
local kinds = call('SMEMBERS', P .. 'kinds')
table.sort(kinds)

local function start_in(kind)
  local key = P .. 'k:' .. kind
  if after_topic == '' or kind ~= after_kind then
    return 0
  end
  if call('ZSCORE', key, after_topic) == after_at then
    return call('ZRANK', key, after_topic) + 1
  end
  return call('ZCOUNT', key, '-inf', '(' .. after_at)
end

local found = {}
for _, kind in ipairs(kinds) do
  if kind >= after_kind and #found < limit then
    local start = start_in(kind)
    local page = call('ZRANGE', P .. 'k:' .. kind, start, start + limit - #found - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      found[#found + 1] = {kind, page[i + 1], describe(page[i])}
    end
  end
end
return found
