-- Appends: records, conditions and heads of one write, checked as a whole and then written as a whole.
--
-- Records stay in `arguments`; a record is the index of the first of its six arguments:
-- +0 topic, +1 id, +2 digest, +3 lane field, +4 body, +5 more ('' or 'headers\nblobs\nmark\nname', see `more_parts`).
-- No table is created per record: an append of many tokens would spend most of its time on them.
-- All checks precede the first write, because Redis does not undo the writes of a function that fails.

-- A write is a table:
-- first, count   index of its first record in `arguments`, and number of records
-- seqs           the seq of each record, as soon as it is known; records that are known already are in `known`
-- topics         each topic once; the first `streams` of them get records, the others only a head
-- conditions, heads

-- Conditions and heads. A head has one hash field per name, with canonical JSON text; an empty text removes the field.
local function take_conditions_and_heads()
  local count = take_number()
  local conditions = count == 0 and NONE or {}
  for i = 1, count do
    conditions[i] = {kind = take(), topic = take(), name = take(), value = take()}
  end
  count = take_number()
  local heads = count == 0 and NONE or {}
  for i = 1, count do
    local head = {topic = take(), names = {}, texts = {}}
    for j = 1, take_number() do
      head.names[j], head.texts[j] = take(), take()
    end
    heads[i] = head
  end
  return conditions, heads
end

local function take_write()
  local count, first, topics, seen = take_number(), position + 1, {}, {}
  for record = first, first + 6 * (count - 1), 6 do
    local topic = arguments[record]
    if not seen[topic] then
      seen[topic] = true
      topics[#topics + 1] = topic
    end
  end
  position = first + 6 * count - 1
  local streams, conditions, heads = #topics, take_conditions_and_heads()
  for _, head in ipairs(heads) do
    if not seen[head.topic] then
      topics[#topics + 1] = head.topic
    end
  end
  return {
    first = first, count = count, seqs = {}, known = NONE,
    topics = topics, streams = streams, conditions = conditions, heads = heads,
  }
end

-- --- checks: each returns a refusal as the reply, or nil

-- XADD fails on a stream that another program numbered. The first topic fails before anything is written; for the others
-- the check has to come first: none of them may have an entry after the last one that the engine could have written.
local function check_streams(write)
  if write.streams < 2 then
    return nil
  end
  local streams, count = {}, write.streams - 1 -- keys, then the id to read after of each
  for i = 1, count do
    streams[i], streams[count + i] = prefix .. 't:' .. write.topics[i + 1], LAST_ENTRY_ID
  end
  local foreign = call('XREAD', 'COUNT', '1', 'STREAMS', unpack(streams))
  return foreign and {'StorageCorrupt', string.sub(foreign[1][1], #prefix + 3)} or nil
end

local function check_topics(write)
  local deleted = first_deleted(write.topics)
  if deleted then
    return {'TopicDeleted', deleted}
  end
  return check_streams(write)
end

-- A record whose id is known with the same digest keeps its first seq and is not written again.
local function check_ids(write, checked)
  for i = checked, write.count do
    local record = write.first + 6 * (i - 1)
    local topic, id = arguments[record], arguments[record + 1]
    local known = id ~= '' and known_id(topic, id)
    if known then
      local answer, digest = id_parts(known)
      if digest ~= arguments[record + 2] then
        return {'IdConflict', topic, id, answer}
      end
      write.known = write.known == NONE and {} or write.known
      write.known[i], write.seqs[i] = true, id_seq(known)
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

local function check_blobs(write)
  local before = ''
  for i = 1, write.count do
    local more = arguments[write.first + 6 * (i - 1) + 5]
    if more ~= before and more ~= '' and not write.known[i] then
      before = more -- a draft has many pieces, all with the same optional fields: check them once
      for name in string.gmatch(string.match(more, '\n([^\n]*)'), '[^,]+') do
        if call('EXISTS', prefix .. 'b:' .. name) == 0 then return {'BlobMissing', name} end
      end
    end
  end
end

local function stored_head(topic)
  local texts, stored = {}, call('HGETALL', prefix .. 'h:' .. topic)
  for i = 1, #stored, 2 do
    texts[stored[i]] = stored[i + 1]
  end
  return texts
end

-- The size of a head after the write.
local function head_bytes(head)
  local size = 0
  for i, name in ipairs(head.names) do
    local text, before = head.texts[i], head.stored[name]
    size = size + (text ~= '' and #name + #text or 0) - (before and #name + #before or 0)
  end
  for name, text in pairs(head.stored) do
    size = size + #name + #text
  end
  return size
end

local function check_head_sizes(heads)
  for _, head in ipairs(heads) do
    head.stored = stored_head(head.topic)
    local size = head_bytes(head)
    if size > HEAD_MAX_BYTES then
      return {'HeadTooLarge', head.topic, digits(size)}
    end
  end
end

-- `checked` is the first record whose id is checked here: 2 when the first record's id is the key of the append.
local function check_write(write, checked)
  return check_topics(write) or check_ids(write, checked) or check_conditions(write.conditions) or check_blobs(write)
    or check_head_sizes(write.heads)
end

-- --- writes

-- Add a record to its stream and return its seq. `piece` remembers the draft of the record before: the pieces of a draft
-- follow each other, and only the first one needs its optional fields split and its draft indexed.
local function add_record(record, at, piece)
  local topic, more = arguments[record], arguments[record + 5]
  local id, lane, body = arguments[record + 1], arguments[record + 3], arguments[record + 4]
  if more == '' then
    return add_entry(topic, 'i', id, 'a', at, 'l', lane, 'p', body)
  end
  if more == piece.more and topic == piece.topic then
    return add_entry(topic, 'i', id, 'a', at, 'l', lane, 'p', body, 'd', piece.name)
  end
  piece.name = string.match(more, '^\n\nd\n(.+)$')
  piece.more, piece.topic = piece.name and more, topic
  local seq = add_entry(topic, unpack(all_fields(id, at, lane, body, more)))
  index_more(topic, seq, at, more)
  return seq
end

-- Write the fields of a head that change. Returns the kind of the topic, whose watchers the caller wakes.
local function set_head(head, at)
  local key, texts = prefix .. 'h:' .. head.topic, head.stored
  local owner_before, changed, removed = texts['owner'], {}, {}
  for i, name in ipairs(head.names) do
    local text = head.texts[i]
    if text == '' then
      removed[#removed + 1] = texts[name] and name
      texts[name] = nil
    elseif text ~= texts[name] then
      changed[#changed + 1] = name
      changed[#changed + 1] = text
      texts[name] = text
    end
  end
  if #changed > 0 then
    call('HSET', key, unpack(changed))
  end
  if #removed > 0 then
    call('HDEL', key, unpack(removed))
  end
  return touch(head.topic, at, owner_before, texts['owner'])
end

-- The numbers of the new records of each topic.
local function new_records(write)
  local numbers = {}
  for i = 1, write.count do
    if not write.known[i] then
      local topic = arguments[write.first + 6 * (i - 1)]
      local list = numbers[topic] or {}
      list[#list + 1], numbers[topic] = i, list
    end
  end
  return numbers
end

-- New records of one topic as a message of eight lines each, so that a follower that has read everything before them
-- does not have to read. Empty when there are none, and when they are too large.
local function notification(write, numbers, at)
  local lines, size = {}, 0
  for i, number in ipairs(numbers or NONE) do
    local record = write.first + 6 * (number - 1)
    local id, body, more = arguments[record + 1], arguments[record + 4], arguments[record + 5]
    size = size + #body + #more
    if size > NOTIFICATION_MAX_BYTES then
      return ''
    end
    more = more == '' and NO_MORE or more
    lines[i] = write.seqs[number] .. '\n' .. at .. '\n' .. id .. '\n' .. more .. '\n' .. body
  end
  return table.concat(lines, '\n')
end

-- Wake the watchers of the topics of a write, and of the kinds whose lists it has changed: `listed` has kind, topic, kind,
-- topic, … Most channels have no subscriber, so one command finds those that have, unless there is little to publish.
local function notify_all(write, listed, at)
  local topics, channels, numbers = write.topics, {}, nil
  if #topics == 1 and #listed == 0 and write.count <= 8 then
    notify(topics[1], notification(write, new_records(write)[topics[1]], at))
    return
  end
  for i, topic in ipairs(topics) do
    channels[i] = channel_of(topic)
  end
  for i = 1, #listed, 2 do
    channels[#channels + 1] = kind_channel(listed[i])
  end
  for first = 1, #channels, UNPACK_MAX do
    local last = math.min(first + UNPACK_MAX - 1, #channels)
    local found = call('PUBSUB', 'NUMSUB', unpack(channels, first, last))
    for i = first, last do
      if found[2 * (i - first + 1)] > 0 then
        numbers = numbers or new_records(write)
        local message = i <= #topics and notification(write, numbers[topics[i]], at) or listed[2 * (i - #topics)]
        call('PUBLISH', channels[i], message)
      end
    end
  end
end

-- Write the records that are not there yet, set the heads and notify. Returns the seqs of all records, joined by commas.
local function write_append(write, checked)
  local at, piece, seqs, listed = now_text(), {}, write.seqs, {}
  for i = 1, write.count do
    if not seqs[i] then
      local record = write.first + 6 * (i - 1)
      local topic, id = arguments[record], arguments[record + 1]
      local seq = add_record(record, at, piece)
      seqs[i] = seq
      if i >= checked and id ~= '' then
        remember_id(topic, id, seq, arguments[record + 2])
      end
      local new_in = index_entry(topic, seq, arguments[record + 3], at)
      if new_in then
        listed[#listed + 1] = new_in
        listed[#listed + 1] = topic
      end
    end
  end
  for _, head in ipairs(write.heads) do
    listed[#listed + 1] = set_head(head, at)
    listed[#listed + 1] = head.topic
  end
  if #write.topics > 0 then
    notify_all(write, listed, at)
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
  local write = take_write()
  local key = write.first
  local topic, id, digest = arguments[key], arguments[key + 1], arguments[key + 2]
  local known = known_id(topic, id)
  if known then
    return repeated(topic, id, digest, known)
  end
  local refusal = check_write(write, 2)
  if refusal then
    return refusal
  end

  local answer = write_append(write, 2)
  remember_id(topic, id, write.seqs[1] .. ':' .. (write.count > 1 and answer or ''), digest)
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
  local seq = add_entry(topic, 'i', id, 'a', at, 'l', lane, 'p', body)
  remember_id(topic, id, seq .. ':', digest)
  local new_in = index_entry(topic, seq, lane, at)
  if new_in then
    notify_kind(topic, new_in)
  end
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
