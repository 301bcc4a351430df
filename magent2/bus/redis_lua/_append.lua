-- The records of an append stay in ARGV: a record is the place of its nine arguments there, which are
-- 0 topic, 1 id, 2 digest, 3 lane, 4 body, 5 headers, 6 draft, 7 closes, 8 blobs. A table for each would cost too much.
-- Rarely needed helpers are made where they are needed: a function that exists costs every run of the script.
local seqs = {} -- of the records, as far as they are known

local function take_records()
  local records, count, place = {}, take_number(), at_argument + 1
  for i = 1, count do
    records[i] = place
    place = place + 9
  end
  at_argument = place - 1
  return records
end

-- Conditions and heads, or nothing when there are none of either.
local function take_extra()
  if ARGV[at_argument + 1] == '0' and ARGV[at_argument + 2] == '0' then
    return nil
  end
  local extra = {conditions = {}, heads = {}}
  for i = 1, take_number() do
    extra.conditions[i] = {kind = take(), topic = take(), name = take(), value = take()}
  end
  for i = 1, take_number() do
    extra.heads[i] = take_head()
  end
  return extra
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

local function check_deleted(records, extra)
  local seen = {}
  for i = 1, #records do
    local topic = ARGV[records[i]]
    if not seen[topic] then
      seen[topic] = true
      if is_deleted(topic) then
        return {'TopicDeleted', topic}
      end
      -- A topic that another program took ends the script here or, if it is the first, at the first write: nothing by halves.
      if i > 1 and #call('XRANGE', P .. 't:' .. topic, '1', '+', 'COUNT', 1) > 0 then
        return {'StorageCorrupt', topic}
      end
    end
  end
  for _, head in ipairs(extra and extra.heads or seen) do
    if is_deleted(head.topic) then
      return {'TopicDeleted', head.topic}
    end
  end
end

-- A known id with the same digest keeps its first seq; the record is left out.
local function check_ids(records, first)
  for i = first, #records do
    local topic, id = ARGV[records[i]], ARGV[records[i] + 1]
    local known = id ~= '' and known_id(topic, id)
    if known then
      local answer, digest = id_parts(known)
      if digest ~= ARGV[records[i] + 2] then
        return {'IdConflict', topic, id, answer}
      end
      seqs[i] = id_seq(known)
    end
  end
end

local function check_blobs(records)
  for i = 1, #records do
    if ARGV[records[i] + 8] ~= '' and not seqs[i] then
      for name in string.gmatch(ARGV[records[i] + 8], '[^,]+') do
        if call('EXISTS', P .. 'b:' .. name) == 0 then return {'BlobMissing', name} end
      end
    end
  end
end

-- What speaks against the append, if anything does; `first` is the first record whose id is not the key.
local function check_append(records, extra, first)
  return check_deleted(records, extra) or check_ids(records, first) or extra and check_conditions(extra.conditions)
    or check_blobs(records) or extra and check_heads(extra.heads)
end

local function add_record(r, at)
  local topic, headers, draft, closes, blobs = ARGV[r], ARGV[r + 5], ARGV[r + 6], ARGV[r + 7], ARGV[r + 8]
  if headers == '' and draft == '' and closes == '' and blobs == '' then
    return add_entry(topic, ARGV[r + 1], at, ARGV[r + 3], ARGV[r + 4])
  end
  local fields = full_fields(ARGV[r + 1], at, ARGV[r + 3], ARGV[r + 4], headers, draft, closes, blobs)
  local seq = string.sub(call('XADD', P .. 't:' .. topic, '0-*', unpack(fields)), 3)
  index_extras(topic, seq, at, draft, closes, blobs)
  return seq
end

-- A topic with one new record is told it whole.
local function tell(topics, only, records, at)
  for i = 1, #topics do
    local n = only[topics[i]]
    local r = records[n]
    notify(topics[i], r and news(seqs[n], at, ARGV[r + 1], ARGV[r + 5], ARGV[r + 6], ARGV[r + 7], ARGV[r + 8], ARGV[r + 4]) or '')
  end
end

-- Writes what is not there yet and tells of it; the seq of each record, joined.
local function write_append(records, extra, first)
  local at, only, topics = now_text(), {}, {}
  for i = 1, #records do
    local r = records[i]
    if not seqs[i] then
      local topic = ARGV[r]
      local seq = add_record(r, at)
      seqs[i] = seq
      if i >= first and ARGV[r + 1] ~= '' then
        remember_id(topic, ARGV[r + 1], seq, ARGV[r + 2])
      end
      index_entry(topic, seq, ARGV[r + 3], at)
      if only[topic] == nil then topics[#topics + 1] = topic end
      only[topic] = only[topic] == nil and i
    end
  end
  for _, head in ipairs(extra and extra.heads or {}) do
    set_head(head, at)
    if only[head.topic] == nil then topics[#topics + 1] = head.topic end
    only[head.topic] = false
  end
  tell(topics, only, records, at)
  return table.concat(seqs, ',')
end
