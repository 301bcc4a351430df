-- Heads: one hash field per field, as canonical JSON text; an empty text removes.
local function take_head()
  local head = {topic = take(), names = {}, texts = {}}
  for i = 1, take_number() do
    head.names[i], head.texts[i] = take(), take()
  end
  return head
end

local function check_heads(heads)
  local function bytes_after(head)
    local texts, size = {}, 0
    local now = call('HGETALL', P .. 'h:' .. head.topic)
    for i = 1, #now, 2 do
      texts[now[i]] = now[i + 1]
    end
    for i, name in ipairs(head.names) do
      texts[name] = head.texts[i]
    end
    for name, text in pairs(texts) do
      size = size + (text ~= '' and #name + #text or 0)
    end
    return size
  end

  for _, head in ipairs(heads) do
    local size = bytes_after(head)
    if size > HEAD_MAX_BYTES then
      return {'HeadTooLarge', head.topic, digits(size)}
    end
  end
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
