-- Topics by (active, name), descending, below `before`. Every kind is looked through as far as it takes; where one was left
-- off, what lies behind that place is left out everywhere and the place is returned to go on from.
local prefix, owner, before_at, before_topic, limit = take(), take(), take(), take(), take_number()
local found, edge = {}, nil

local function later(a, b)
  if a.at ~= b.at then return a.at > b.at end
  return a.topic > b.topic
end

local function is_below(item)
  return before_at == '' or later({at = tonumber(before_at), topic = before_topic}, item)
end

local function look(kind)
  local key = owner == '' and P .. 'k:' .. kind or P .. 'o:' .. kind .. ':' .. owner
  local top, offset, taken = before_at == '' and '+inf' or before_at, 0, 0
  while true do
    local page = call('ZREVRANGEBYSCORE', key, top, '-inf', 'WITHSCORES', 'LIMIT', offset, TOPICS_PAGE)
    for i = 1, #page, 2 do
      local item = {topic = page[i], at = tonumber(page[i + 1])}
      if string.sub(item.topic, 1, #prefix) == prefix and is_below(item) then
        found[#found + 1] = item
        taken = taken + 1
      end
    end
    offset = offset + TOPICS_PAGE
    if #page < 2 * TOPICS_PAGE then return end
    local last = {topic = page[#page - 1], at = tonumber(page[#page])}
    if is_below(last) and (taken > limit or offset >= TOPICS_SCAN) then
      if not edge or later(last, edge) then edge = last end
      return
    end
  end
end

local kind = string.match(prefix, '^([^:]*):')
if kind then
  look(kind)
else
  for _, name in ipairs(call('SMEMBERS', P .. 'kinds')) do
    if string.sub(name, 1, 1) ~= ':' then look(name) end
  end
end

table.sort(found, later)
local reply = {}
for _, item in ipairs(found) do
  if #reply > limit or (edge and later(edge, item)) then break end
  reply[#reply + 1] = describe(item.topic)
end
return {reply, edge and digits(edge.at) or '', edge and edge.topic or ''}
