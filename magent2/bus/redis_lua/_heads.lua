-- Heads: one hash field per field, as canonical JSON text; an empty text removes.
local function take_heads()
  local heads = {}
  for i = 1, take_number() do
    local head = {topic = take(), names = {}, texts = {}}
    for j = 1, take_number() do
      head.names[j], head.texts[j] = take(), take()
    end
    heads[i] = head
  end
  return heads
end

local function head_bytes(head)
  local texts = {}
  local now = call('HGETALL', P .. 'h:' .. head.topic)
  for i = 1, #now, 2 do
    texts[now[i]] = now[i + 1]
  end
  for i, name in ipairs(head.names) do
    texts[name] = head.texts[i]
  end
  local size = 0
  for name, text in pairs(texts) do
    size = size + (text ~= '' and #name + #text or 0)
  end
  return size
end

local function set_head(head, at)
  local key = P .. 'h:' .. head.topic
  local owner_before = call('HGET', key, 'owner')
  for i, name in ipairs(head.names) do
    if head.texts[i] == '' then
      call('HDEL', key, name)
    else
      call('HSET', key, name, head.texts[i])
    end
  end
  touch(head.topic, at, owner_before, call('HGET', key, 'owner'))
end
