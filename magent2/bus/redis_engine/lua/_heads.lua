-- Conditions and heads of an append. A head has one hash field per field, as canonical JSON text; an empty text removes.
-- All of it in one function, which most appends never enter: nothing is returned when there are none of either.
local function take_extra()
  if ARGV[at_argument + 1] == '0' and ARGV[at_argument + 2] == '0' then
    return nil
  end
  local extra = {conditions = {}, heads = {}}

  for i = 1, take_number() do
    extra.conditions[i] = {kind = take(), topic = take(), name = take(), value = take()}
  end
  for i = 1, take_number() do
    local head = {topic = take(), names = {}, texts = {}}
    for j = 1, take_number() do
      head.names[j], head.texts[j] = take(), take()
    end
    extra.heads[i] = head
  end

  function extra.check_deleted()
    for _, head in ipairs(extra.heads) do
      if is_deleted(head.topic) then
        return {'TopicDeleted', head.topic}
      end
    end
  end

  function extra.check_conditions()
    for _, condition in ipairs(extra.conditions) do
      local found
      if condition.kind == 'at' then
        found = digits(last_seq(condition.topic))
      else
        found = call('HGET', P .. 'h:' .. condition.topic, condition.name) or ''
      end
      if found ~= condition.value then
        return {'ConditionFailed', condition.kind, condition.topic, condition.name, condition.value, found}
      end
    end
  end

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

  function extra.check_sizes()
    for _, head in ipairs(extra.heads) do
      local size = bytes_after(head)
      if size > HEAD_MAX_BYTES then
        return {'HeadTooLarge', head.topic, digits(size)}
      end
    end
  end

  function extra.set_head(head, at)
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

  return extra
end
