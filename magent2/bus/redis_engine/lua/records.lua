-- Records: ids, blobs, drafts and stream entries.

-- --- ids
-- Hash `i` of a topic: id -> 'seq digest'. For the key of an append 'seq: digest', and 'seq:seq,seq,… digest' when the
-- append had several records. An id is known while its record is in the log. List `j` holds the ids whose records were
-- removed, oldest first; the latest IDS_KEPT of them stay known.
local function known_id(topic, id)
  return call('HGET', prefix .. 'i:' .. topic, id)
end

local function id_seq(value)
  return string.match(value, '^%d+')
end

-- The seqs that a repeated append is answered with, and the digest.
local function id_parts(value)
  local seq, answer, digest = string.match(value, '^(%d+):?([%d,]*) (.*)$')
  return answer ~= '' and answer or seq, digest
end

local function remember_id(topic, id, answer, digest)
  call('HSET', prefix .. 'i:' .. topic, id, answer .. ' ' .. digest)
end

-- Keep ids whose records are removed now, and forget the oldest such ids beyond the limit.
local function keep_removed_ids(topic, ids)
  if #ids == 0 then
    return
  end
  local queue = prefix .. 'j:' .. topic
  local excess = call('RPUSH', queue, unpack(ids)) - IDS_KEPT
  if excess > 0 then
    call('HDEL', prefix .. 'i:' .. topic, unpack(call('LPOP', queue, excess)))
  end
end

-- --- blobs
-- Hash `b` of a blob: d = data, a = when it was put, r = number of records that name it. `blobs` lists all blobs by age,
-- `loose` those that no record names. Hash `B` of a topic: seq -> the names of that record's blobs, joined by commas.
local function keep_blob(name, at, data)
  local key = prefix .. 'b:' .. name
  call('HSET', key, 'd', data, 'a', at)
  call('HSETNX', key, 'r', 0)
  call('ZADD', prefix .. 'blobs', at, name)
  if tonumber(call('HGET', key, 'r')) <= 0 then
    call('ZADD', prefix .. 'loose', at, name)
  end
end

local function hold_blobs(topic, seq, names)
  call('HSET', prefix .. 'B:' .. topic, seq, names)
  for name in string.gmatch(names, '[^,]+') do
    if call('HINCRBY', prefix .. 'b:' .. name, 'r', 1) == 1 then
      call('ZREM', prefix .. 'loose', name)
    end
  end
end

local function release_blobs(names)
  for name in string.gmatch(names, '[^,]+') do
    local key = prefix .. 'b:' .. name
    if call('EXISTS', key) == 1 and call('HINCRBY', key, 'r', -1) <= 0 then
      call('ZADD', prefix .. 'loose', call('HGET', key, 'a'), name)
    end
  end
end

local function release_record_blobs(topic, seq)
  local names = call('HGET', prefix .. 'B:' .. topic, seq)
  if names then
    call('HDEL', prefix .. 'B:' .. topic, seq)
    release_blobs(names)
  end
end

local function drop_blob(name)
  call('UNLINK', prefix .. 'b:' .. name)
  call('ZREM', prefix .. 'loose', name)
  call('ZREM', prefix .. 'blobs', name)
end

-- Drop those of these blobs that no record names any more.
local function drop_unnamed_blobs(names)
  for name in string.gmatch(names, '[^,]+') do
    if tonumber(call('HGET', prefix .. 'b:' .. name, 'r') or 1) <= 0 then
      drop_blob(name)
    end
  end
end

-- --- entries
-- A record is the stream entry `0-seq`: i = id ('' when the log assigned it), a = time, l = lane field, p = payload,
-- and where present h = headers, d = its draft, c = the draft that it closes, b = blobs.
-- Lane field: '=conversation' is mail and a copy, '~conversation' mail only, '-conversation' a copy only, '' neither.
-- A copy is deleted with its conversation. Set `c` of a conversation lists its copies as 'seq topic'.
-- (Bytes as numbers: Redis 7.0 has no `string` while it loads a library.)
local MARK_MAIL_AND_COPY, MARK_MAIL, MARK_COPY = 61, 126, 45 -- '=', '~', '-'
local NO_MORE = '\n\n-\n'
local LAST_ENTRY_ID = '0-18446744073709551615'

-- Split the optional fields of a record: headers, blobs, mark, name. The mark says whether the name is that of the
-- record's draft (d), of the draft that it closes (c), or nothing (-).
local function more_parts(more)
  return string.match(more, '^([^\n]*)\n([^\n]*)\n(.)\n(.*)$')
end

local function all_fields(id, at, lane, body, more)
  local fields = {'i', id, 'a', at, 'l', lane, 'p', body}
  local headers, blobs, mark, name = more_parts(more == '' and NO_MORE or more)
  for field, value in pairs({h = headers, b = blobs, [mark] = name}) do
    if value ~= '' then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  return fields
end

-- The first record of a topic in a new epoch: replace the entry that got the number after the topic's last one. Readers
-- may have seen records under these numbers that the log has lost, so the topic goes on after the epoch's base.
local function begin_numbers(topic, seq, ...)
  local stream, state, last = prefix .. 't:' .. topic, prefix .. 's:' .. topic, tonumber(seq) - 1
  call('XDEL', stream, '0-' .. seq)
  call('XADD', stream, '0-' .. digits(epoch_base + 1), ...)
  call('HINCRBY', state, 'g', digits(epoch_base - last))
  local before = call('HGET', state, 'e')
  call('HSET', state, 'e', (before and before .. ',' or '') .. digits(last) .. '-' .. digits(epoch_base))
  return digits(epoch_base + 1)
end

-- Add an entry with these fields to a topic. Returns its seq.
local function add_entry(topic, ...)
  local seq = string.sub(call('XADD', prefix .. 't:' .. topic, '0-*', ...), 3)
  if epoch_base > 0 and tonumber(seq) <= epoch_base then
    return begin_numbers(topic, seq, ...)
  end
  return seq
end

-- The conversation that a record is a copy of, or nil.
local function copied_conversation(lane)
  local mark = string.byte(lane)
  return (mark == MARK_MAIL_AND_COPY or mark == MARK_COPY) and #lane > 1 and string.sub(lane, 2) or nil
end

local function index_copy(topic, seq, lane)
  local conversation = copied_conversation(lane)
  if conversation then
    call('SADD', prefix .. 'c:' .. conversation, seq .. ' ' .. topic)
  end
end

-- Index an entry. Returns the kind of a topic that is new in its list: the caller wakes the watchers of the kind.
local function index_entry(topic, seq, lane, at)
  if lane ~= '' then
    index_copy(topic, seq, lane)
  end
  if seq == '1' or epoch_base > 0 and tonumber(seq) == epoch_base + 1 then
    local kind = kind_of(topic)
    if call('ZADD', prefix .. 'k:' .. kind, 'NX', at, topic) == 1 then
      list_new(topic, kind)
      return kind
    end
  end
end

-- Index the draft and the blobs of a record. Of a topic: hash `g` open draft -> seq of its first piece;
-- sorted set `f` 'first closing name' of closed drafts, by the time when they were closed.
local function index_more(topic, seq, at, more)
  local _, blobs, mark, name = more_parts(more)
  if mark == 'd' then
    call('HSETNX', prefix .. 'g:' .. topic, name, seq)
  elseif mark == 'c' then
    local first = call('HGET', prefix .. 'g:' .. topic, name)
    if first then
      call('HDEL', prefix .. 'g:' .. topic, name)
      call('ZADD', prefix .. 'f:' .. topic, at, first .. ' ' .. seq .. ' ' .. name)
    end
  end
  if blobs ~= '' then
    hold_blobs(topic, seq, blobs)
  end
end

local function entry_fields(entry)
  local fields = {}
  for i = 1, #entry[2] - 1, 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  return fields
end

local function entry_seq(entry)
  return string.match(entry[1], '%d+$')
end

local function entry_at(topic, seq)
  return call('XRANGE', prefix .. 't:' .. topic, '0-' .. seq, '0-' .. seq)[1]
end

-- The fields of the entries of a topic with these seqs, by seq. Seqs in a row are read with one command.
local function read_entries(topic, seqs)
  local fields, first = {}, 1
  table.sort(seqs)
  for i = 1, #seqs do
    if seqs[i + 1] ~= seqs[i] + 1 then
      local low, high = '0-' .. digits(seqs[first]), '0-' .. digits(seqs[i])
      for _, entry in ipairs(call('XRANGE', prefix .. 't:' .. topic, low, high)) do
        fields[tonumber(entry_seq(entry))] = entry[2]
      end
      first = i + 1
    end
  end
  return fields
end

-- --- removing entries
-- Sorted set `z` of a topic keeps erased records by seq, as 'seq\nat\nid\nmark\nname'.
local function erased_at(topic, seq)
  return call('ZRANGEBYSCORE', prefix .. 'z:' .. topic, seq, seq)[1]
end

-- Remove what an entry holds outside its stream. The caller removes the entry itself.
local function unindex_entry(topic, seq, fields)
  release_record_blobs(topic, seq)
  local lane = fields['l'] or ''
  local conversation = copied_conversation(lane)
  if conversation then
    local copies = prefix .. 'c:' .. conversation
    call('SREM', copies, seq .. ' ' .. topic)
    call('SADD', prefix .. 'stale', topic) -- see `scrub` in retention.lua
    if string.byte(lane) == MARK_MAIL_AND_COPY then
      call('SADD', copies, '@ ' .. topic) -- the inbox's lane may exist longer than this mail
    end
  end
end

local function drop_entries(topic, entry_ids)
  if #entry_ids > 0 then
    local gone = call('XDEL', prefix .. 't:' .. topic, unpack(entry_ids))
    call('HINCRBY', prefix .. 's:' .. topic, 'g', gone)
  end
end

-- Remove the digest of a record's body: it would allow guesses of the body to be tested.
local function forget_body(topic, seq)
  local entry = entry_at(topic, seq)
  local id = entry and entry_fields(entry)['i'] or ''
  local known = id ~= '' and known_id(topic, id)
  if known then
    call('HSET', prefix .. 'i:' .. topic, id, (string.gsub(known, ' .*$', ' ')))
  end
end

-- Empty a record. Returns whether there was such a record.
local function erase_record(topic, seq)
  local entry = entry_at(topic, seq)
  if not entry then
    return erased_at(topic, seq) ~= nil
  end
  local fields = entry_fields(entry)
  unindex_entry(topic, seq, fields)
  local mark, name = '-', ''
  if fields['d'] then
    mark, name = 'd', fields['d']
  elseif fields['c'] then
    mark, name = 'c', fields['c']
  end
  -- Another program may have written the entry, so every field is checked.
  local at = string.match(fields['a'] or '', '^%d+$') or '0'
  local id = string.match(fields['i'] or '', '^[^%c]*$') or ''
  call('ZADD', prefix .. 'z:' .. topic, seq, table.concat({seq, at, id, mark, name}, '\n'))
  call('SADD', prefix .. 'stale', topic) -- see `scrub` in retention.lua
  drop_entries(topic, {entry[1]})
  return true
end
