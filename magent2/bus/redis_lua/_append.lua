-- Records of an append: taken from the arguments, checked, written, told.
local function take_records()
  local records = {}
  for i = 1, take_number() do
    records[i] = {
      topic = take(), id = take(), digest = take(), lane = take(), body = take(),
      headers = take(), draft = take(), closes = take(), blobs = take(),
    }
  end
  return records
end

local function take_conditions()
  local conditions = {}
  for i = 1, take_number() do
    conditions[i] = {kind = take(), topic = take(), name = take(), value = take()}
  end
  return conditions
end

local function check_deleted(records, heads)
  local seen = {}
  for _, list in ipairs({records, heads}) do
    for _, item in ipairs(list) do
      if not seen[item.topic] then
        seen[item.topic] = true
        if is_deleted(item.topic) then
          return {'TopicDeleted', item.topic}
        end
        call('XLEN', P .. 't:' .. item.topic) -- a key of another type ends the script here, before anything is written
      end
    end
  end
end

-- A known id with the same digest keeps its first seq; the record is left out.
local function check_ids(records, from)
  for i = from, #records do
    local record = records[i]
    local known = record.id ~= '' and known_id(record.topic, record.id)
    if known then
      local answer, digest = id_parts(known)
      if digest ~= record.digest then
        return {'IdConflict', record.topic, record.id, answer}
      end
      record.seq = id_seq(known)
    end
  end
end

local function check_conditions(conditions)
  for _, condition in ipairs(conditions) do
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

local function check_blobs(records)
  local missing
  for _, record in ipairs(records) do
    if record.blobs ~= '' and not record.seq then
      each_blob(record.blobs, function(name)
        if call('EXISTS', P .. 'b:' .. name) == 0 then missing = name end
      end)
    end
  end
  return missing and {'BlobMissing', missing}
end

local function check_heads(heads)
  for _, head in ipairs(heads) do
    local size = head_bytes(head)
    if size > HEAD_MAX_BYTES then
      return {'HeadTooLarge', head.topic, digits(size)}
    end
  end
end

local function check_append(records, conditions, heads, from)
  return check_deleted(records, heads) or check_ids(records, from) or check_conditions(conditions)
    or check_blobs(records) or check_heads(heads)
end

local function add_full(r, at)
  local fields = full_fields(r.id, at, r.lane, r.body, r.headers, r.draft, r.closes, r.blobs)
  local seq = string.sub(call('XADD', P .. 't:' .. r.topic, '0-*', unpack(fields)), 3)
  if r.draft ~= '' then note_draft(r.topic, seq, r.draft) end
  if r.closes ~= '' then close_draft(r.topic, seq, r.closes, at) end
  if r.blobs ~= '' then hold_blobs(r.topic, seq, r.blobs) end
  return seq
end

local function write_record(record, at)
  if record.headers == '' and record.draft == '' and record.closes == '' and record.blobs == '' then
    record.seq = add_entry(record.topic, record.id, at, record.lane, record.body)
  else
    record.seq = add_full(record, at)
  end
  if record.id ~= '' and not record.is_key then
    remember_id(record.topic, record.id, record.seq, record.digest)
  end
  index_entry(record.topic, record.seq, record.lane, at)
end

-- Topics in the order they were written, with the news of each: the record itself if it is the only one.
local function tell(written, heads, at)
  local told, topics = {}, {}
  for _, record in ipairs(written) do
    if told[record.topic] == nil then
      topics[#topics + 1] = record.topic
      told[record.topic] = record
    else
      told[record.topic] = false
    end
  end
  for _, head in ipairs(heads) do
    if told[head.topic] == nil then topics[#topics + 1] = head.topic end
    told[head.topic] = false
  end
  for _, topic in ipairs(topics) do
    local r = told[topic]
    notify(topic, r and news(r.seq, at, r.id, r.headers, r.draft, r.closes, r.blobs, r.body) or '')
  end
end

-- The seq of each record, in order.
local function write_append(records, heads)
  local at = digits(now_ms())
  local seqs, written = {}, {}
  for i, record in ipairs(records) do
    if not record.seq then
      write_record(record, at)
      written[#written + 1] = record
    end
    seqs[i] = record.seq
  end
  for _, head in ipairs(heads) do
    set_head(head, at)
  end
  tell(written, heads, at)
  return seqs
end
