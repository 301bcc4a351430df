-- Appends: records, conditions and heads of one write, checked as a whole and then written as a whole.
--
-- Records stay in `arguments`; a record is the index of the first of its six arguments:
-- +0 topic, +1 id, +2 digest, +3 lane field, +4 body, +5 more ('' or 'headers\nblobs\nmark\nname', see `more_parts`).
-- No table is created per record: an append of many tokens would spend most of its time on them.
-- All checks precede the first write, because Redis does not undo the writes of a function that fails.

-- A list of record indexes. `seqs` holds the seq of each record, as soon as it is known.
local function take_records()
  local records, count, index = {seqs = {}}, take_number(), position + 1
  for i = 1, count do
    records[i] = index
    index = index + 6
  end
  position = index - 1
  return records
end

-- Conditions and heads. A head has one hash field per name, with canonical JSON text; an empty text removes the field.
local function take_conditions_and_heads()
  local conditions, heads = {}, {}
  for i = 1, take_number() do
    conditions[i] = {kind = take(), topic = take(), name = take(), value = take()}
  end
  for i = 1, take_number() do
    local head = {topic = take(), names = {}, texts = {}}
    for j = 1, take_number() do
      head.names[j], head.texts[j] = take(), take()
    end
    heads[i] = head
  end
  return conditions, heads
end

-- --- checks: each returns a refusal as the reply, or nil

local function check_topics(records, heads)
  local seen = {}
  for i = 1, #records do
    local topic = arguments[records[i]]
    if not seen[topic] then
      seen[topic] = true
      if is_deleted(topic) then
        return {'TopicDeleted', topic}
      end
      -- XADD fails on a stream that another program numbered. The first topic fails before anything is written; for the
      -- others the check has to come first.
      if i > 1 and #call('XRANGE', prefix .. 't:' .. topic, '1', '+', 'COUNT', 1) > 0 then
        return {'StorageCorrupt', topic}
      end
    end
  end
  for _, head in ipairs(heads) do
    if is_deleted(head.topic) then
      return {'TopicDeleted', head.topic}
    end
  end
end

-- A record whose id is known with the same digest keeps its first seq and is not written again.
local function check_ids(records, first)
  for i = first, #records do
    local topic, id = arguments[records[i]], arguments[records[i] + 1]
    local known = id ~= '' and known_id(topic, id)
    if known then
      local answer, digest = id_parts(known)
      if digest ~= arguments[records[i] + 2] then
        return {'IdConflict', topic, id, answer}
      end
      records.seqs[i] = id_seq(known)
    end
  end
end

local function check_conditions(conditions)
  for _, condition in ipairs(conditions) do
    local found
    if condition.kind == 'at' then
      found = digits(last_seq(condition.topic))
    else
      found = call('HGET', prefix .. 'h:' .. condition.topic, condition.name) or ''
    end
    if found ~= condition.value then
      return {'ConditionFailed', condition.kind, condition.topic, condition.name, condition.value, found}
    end
  end
end

local function check_blobs(records)
  local before = ''
  for i = 1, #records do
    local more = arguments[records[i] + 5]
    if more ~= before and more ~= '' and not records.seqs[i] then
      before = more -- a draft has many pieces, all with the same optional fields: check them once
      for name in string.gmatch(string.match(more, '\n([^\n]*)'), '[^,]+') do
        if call('EXISTS', prefix .. 'b:' .. name) == 0 then return {'BlobMissing', name} end
      end
    end
  end
end

-- The size of a head after the write.
local function head_bytes(head)
  local texts, size = {}, 0
  local stored = call('HGETALL', prefix .. 'h:' .. head.topic)
  for i = 1, #stored, 2 do
    texts[stored[i]] = stored[i + 1]
  end
  for i, name in ipairs(head.names) do
    texts[name] = head.texts[i]
  end
  for name, text in pairs(texts) do
    size = size + (text ~= '' and #name + #text or 0)
  end
  return size
end

local function check_head_sizes(heads)
  for _, head in ipairs(heads) do
    local size = head_bytes(head)
    if size > HEAD_MAX_BYTES then
      return {'HeadTooLarge', head.topic, digits(size)}
    end
  end
end

-- `first` is the first record whose id is checked here: 2 when the first record's id is the key of the append.
local function check_append(records, conditions, heads, first)
  return check_topics(records, heads) or check_ids(records, first) or check_conditions(conditions)
    or check_blobs(records) or check_head_sizes(heads)
end

-- --- writes

-- Add a record to its stream and return its seq. `piece` remembers the draft of the record before: the pieces of a draft
-- follow each other, and only the first one needs its optional fields split and its draft indexed.
local function add_record(record, at, piece)
  local topic, more = arguments[record], arguments[record + 5]
  local stream, id, lane, body = prefix .. 't:' .. topic, arguments[record + 1], arguments[record + 3], arguments[record + 4]
  if more == '' then
    return string.sub(call('XADD', stream, '0-*', 'i', id, 'a', at, 'l', lane, 'p', body), 3)
  end
  if more == piece.more and topic == piece.topic then
    return string.sub(call('XADD', stream, '0-*', 'i', id, 'a', at, 'l', lane, 'p', body, 'd', piece.name), 3)
  end
  piece.name = string.match(more, '^\n\nd\n(.+)$')
  piece.more, piece.topic = piece.name and more, topic
  local seq = string.sub(call('XADD', stream, '0-*', unpack(all_fields(id, at, lane, body, more))), 3)
  index_more(topic, seq, at, more)
  return seq
end

local function set_head(head, at)
  local key = prefix .. 'h:' .. head.topic
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

-- New records of one topic as a message of eight lines each, so that a follower that has read everything before them
-- does not have to read. Empty when the records are too large, or when they are many and the channel has no subscriber.
local function notification(topic, records, numbers, at)
  if #numbers > 8 and call('PUBSUB', 'NUMSUB', prefix .. 'n:' .. topic)[2] == 0 then
    return ''
  end
  local lines, size = {}, 0
  for i, number in ipairs(numbers) do
    local record = records[number]
    local id, body, more = arguments[record + 1], arguments[record + 4], arguments[record + 5]
    size = size + #body + #more
    if size > NOTIFICATION_MAX_BYTES then
      return ''
    end
    lines[i] = records.seqs[number] .. '\n' .. at .. '\n' .. id .. '\n' .. (more == '' and NO_MORE or more) .. '\n' .. body
  end
  return table.concat(lines, '\n')
end

-- Write the records that are not there yet, set the heads and notify. Returns the seqs of all records, joined by commas.
local function write_append(records, heads, first)
  local at, piece, seqs = now_text(), {}, records.seqs
  local topics, numbers = {}, {} -- topics in order of first use; for each, the numbers of its new records

  local function changed(topic)
    if not numbers[topic] then
      topics[#topics + 1] = topic
      numbers[topic] = {}
    end
    return numbers[topic]
  end

  for i = 1, #records do
    if not seqs[i] then
      local record = records[i]
      local topic, id = arguments[record], arguments[record + 1]
      local seq = add_record(record, at, piece)
      seqs[i] = seq
      if i >= first and id ~= '' then
        remember_id(topic, id, seq, arguments[record + 2])
      end
      index_entry(topic, seq, arguments[record + 3], at)
      table.insert(changed(topic), i)
    end
  end
  for _, head in ipairs(heads) do
    set_head(head, at)
    changed(head.topic)
  end
  for _, topic in ipairs(topics) do
    notify(topic, notification(topic, records, numbers[topic], at))
  end
  return table.concat(seqs, ',')
end

-- --- functions

-- The reply to an append whose key is known: the seqs of the first time, or a refusal if the content differs.
local function repeated(topic, id, digest, known)
  local answer, first_digest = id_parts(known)
  if first_digest ~= digest then
    return {'IdConflict', topic, id, answer}
  end
  return {'repeat', answer}
end

local function append()
  local records = take_records()
  local conditions, heads = take_conditions_and_heads()
  local key = records[1]
  local topic, id, digest = arguments[key], arguments[key + 1], arguments[key + 2]
  local known = known_id(topic, id)
  if known then
    return repeated(topic, id, digest, known)
  end
  local refusal = check_append(records, conditions, heads, 2)
  if refusal then
    return refusal
  end

  local answer = write_append(records, heads, 2)
  remember_id(topic, id, records.seqs[1] .. ':' .. (#records > 1 and answer or ''), digest)
  return {'done', answer}
end

-- `append` of one record without optional fields, conditions and heads: the most frequent case, in half the time.
local function publish()
  local topic, id, digest, lane, body = take(), take(), take(), take(), take()
  local known = known_id(topic, id)
  if known then
    return repeated(topic, id, digest, known)
  end
  if is_deleted(topic) then
    return {'TopicDeleted', topic}
  end

  local at = now_text()
  local seq = string.sub(call('XADD', prefix .. 't:' .. topic, '0-*', 'i', id, 'a', at, 'l', lane, 'p', body), 3)
  remember_id(topic, id, seq .. ':', digest)
  index_entry(topic, seq, lane, at)
  local fits = #body <= NOTIFICATION_MAX_BYTES
  notify(topic, fits and seq .. '\n' .. at .. '\n' .. id .. '\n' .. NO_MORE .. '\n' .. body or '')
  return {'done', seq}
end

local function put_blob()
  keep_blob(take(), now_text(), take())
  return 1
end

register('append', append)
register('publish', publish)
register('put_blob', put_blob)
