-- The records of an append stay in ARGV: a record is the place of its six arguments there, which are
-- 0 topic, 1 id, 2 digest, 3 lane, 4 body, 5 more: '' or 'headers\nblobs\nmark\nname', where the mark tells whether the name is
-- of a draft (d), of what the record closes (c), or of nothing (-).
-- Few functions and no table per record: each of them costs every run of the script.
local seqs = {} -- of the records, as far as they are known

local function take_records()
  local records, count, place = {}, take_number(), at_argument + 1
  for i = 1, count do
    records[i] = place
    place = place + 6
  end
  at_argument = place - 1
  return records
end

local function check_topics(records, extra)
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
  return extra and extra.check_deleted()
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
  local before = ''
  for i = 1, #records do
    local more = ARGV[records[i] + 5]
    if more ~= before and more ~= '' and not seqs[i] then
      before = more -- the pieces of a draft, which are many, all have the same
      for name in string.gmatch(string.match(more, '\n([^\n]*)'), '[^,]+') do
        if call('EXISTS', P .. 'b:' .. name) == 0 then return {'BlobMissing', name} end
      end
    end
  end
end

-- What speaks against the append, if anything does; `first` is the first record whose id is not the key.
local function check_append(records, extra, first)
  return check_topics(records, extra) or check_ids(records, first) or extra and extra.check_conditions()
    or check_blobs(records) or extra and extra.check_sizes()
end

-- The draft that the record before this one was a piece of, and nothing else: `more`, its topic and its name.
local piece_more, piece_topic, piece_name

local function add_record(r, at)
  local topic, more = ARGV[r], ARGV[r + 5]
  if more == '' then
    return string.sub(
      call('XADD', P .. 't:' .. topic, '0-*', 'i', ARGV[r + 1], 'a', at, 'l', ARGV[r + 3], 'p', ARGV[r + 4]), 3)
  end
  if more == piece_more and topic == piece_topic then
    return string.sub(
      call('XADD', P .. 't:' .. topic, '0-*', 'i', ARGV[r + 1], 'a', at, 'l', ARGV[r + 3], 'p', ARGV[r + 4],
        'd', piece_name), 3)
  end
  piece_name = string.match(more, '^\n\nd\n(.+)$')
  piece_more, piece_topic = piece_name and more, topic
  local fields = full_fields(ARGV[r + 1], at, ARGV[r + 3], ARGV[r + 4], more)
  local seq = string.sub(call('XADD', P .. 't:' .. topic, '0-*', unpack(fields)), 3)
  index_more(topic, seq, at, more)
  return seq
end

-- A topic is told its new records whole, eight lines each, so that a follower that stands right before them need not read;
-- nothing where they are too large together, or many and nobody listens.
local function tell(topics, numbers, records, at)
  for i = 1, #topics do
    local channel, told, news, size = P .. 'n:' .. topics[i], numbers[topics[i]], {}, 0
    if #told > 8 and call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
      told = {}
    end
    for j, n in ipairs(told) do
      local r = records[n]
      size = size + #ARGV[r + 4] + #ARGV[r + 5]
      if size > NOTIFICATION_MAX_BYTES then
        news = {}
        break
      end
      local more = ARGV[r + 5] == '' and NO_MORE or ARGV[r + 5]
      news[j] = seqs[n] .. '\n' .. at .. '\n' .. ARGV[r + 1] .. '\n' .. more .. '\n' .. ARGV[r + 4]
    end
    call('PUBLISH', channel, table.concat(news, '\n'))
  end
end

-- Writes what is not there yet and tells of it; the seq of each record, joined.
local function write_append(records, extra, first)
  local at, numbers, topics = now_text(), {}, {}
  for i = 1, #records do
    if not seqs[i] then
      local r = records[i]
      local topic = ARGV[r]
      local seq = add_record(r, at)
      seqs[i] = seq
      if i >= first and ARGV[r + 1] ~= '' then
        remember_id(topic, ARGV[r + 1], seq, ARGV[r + 2])
      end
      index_entry(topic, seq, ARGV[r + 3], at)
      if not numbers[topic] then
        topics[#topics + 1] = topic
        numbers[topic] = {}
      end
      table.insert(numbers[topic], i)
    end
  end
  for _, head in ipairs(extra and extra.heads or {}) do
    extra.set_head(head, at)
    if not numbers[head.topic] then
      topics[#topics + 1] = head.topic
      numbers[head.topic] = {}
    end
  end
  tell(topics, numbers, records, at)
  return table.concat(seqs, ',')
end
