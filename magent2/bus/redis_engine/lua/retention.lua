-- Removing records: trim, compact, erase, delete, and the clean-up after them. Callers repeat a function while it says
-- that there is more, so that no single call blocks the server for long.

-- --- trim

-- Unsettled mail of an inbox is kept. Returns the first seq that sorted mail keeps, and how far the inbox is sorted.
local function kept_mail(topic)
  local kind, name = string.match(topic, '^([^:]*):(.*)$')
  if kind ~= 'chat' and kind ~= 'control' then
    return nil, nil
  end
  local oldest = call('ZRANGE', prefix .. (kind == 'control' and 'uc:' or 'u:') .. name, 0, 0, 'WITHSCORES')
  return tonumber(oldest[2]), tonumber(call('HGET', prefix .. 'q:' .. name, kind) or 0)
end

-- The oldest records of a topic, erased ones included.
local function oldest_records(topic, limit)
  local records = {}
  for _, entry in ipairs(call('XRANGE', prefix .. 't:' .. topic, '-', '+', 'COUNT', limit)) do
    local fields = entry_fields(entry)
    local seq, at = tonumber(entry_seq(entry)), tonumber(fields['a']) or 0
    records[#records + 1] = {seq = seq, at = at, id = fields['i'] or '', fields = fields}
  end
  for _, kept in ipairs(call('ZRANGE', prefix .. 'z:' .. topic, 0, limit - 1)) do
    local seq, at, id = string.match(kept, '^(%d+)\n(%d+)\n([^\n]*)')
    records[#records + 1] = {seq = tonumber(seq), at = tonumber(at), id = id}
  end
  table.sort(records, function(a, b) return a.seq < b.seq end)
  return records
end

local function is_mail(record)
  local mark = string.byte(record.fields and (record.fields['l'] or '=') or '')
  return mark == MARK_MAIL_AND_COPY or mark == MARK_MAIL
end

-- Drop one page of the oldest records: all but a number ('keep'), those older than some ms ('age'), or those up to a seq
-- ('through'). Returns the floor, how many records were dropped, and whether there may be more.
local function trim()
  local topic, by, amount, page = take(), take(), take_number(), take_number()
  local erased = prefix .. 'z:' .. topic
  local first_kept, sorted = kept_mail(topic)
  local newest_to_drop = by == 'age' and now_ms() - amount
  local drop_max = by == 'keep' and call('XLEN', prefix .. 't:' .. topic) + call('ZCARD', erased) - amount or page

  local function stays(record)
    if newest_to_drop and record.at > newest_to_drop then return true end
    if by == 'through' and record.seq > amount then return true end
    if first_kept and record.seq >= first_kept then return true end
    return sorted ~= nil and record.seq > sorted and is_mail(record)
  end

  local floor, dropped, entries, ids = topic_state(topic).floor, 0, {}, {}
  for _, record in ipairs(oldest_records(topic, page)) do
    if dropped >= drop_max or dropped >= page or stays(record) then break end
    dropped = dropped + 1
    floor = record.seq
    if record.id ~= '' then
      ids[#ids + 1] = record.id
    end
    if record.fields then
      unindex_entry(topic, digits(floor), record.fields)
      entries[#entries + 1] = '0-' .. digits(floor)
    end
  end
  if dropped > 0 then
    drop_entries(topic, entries)
    keep_removed_ids(topic, ids)
    call('ZREMRANGEBYSCORE', erased, '-inf', digits(floor))
    call('HSET', prefix .. 's:' .. topic, 'f', digits(floor))
  end
  return {digits(floor), dropped, dropped == page and 1 or 0}
end

-- --- compact

-- Drop the pieces of one draft among these entries, and add their ids to `ids`. Returns how many were dropped.
local function drop_pieces(topic, name, entries, ids)
  local pieces = {}
  for _, entry in ipairs(entries) do
    local fields = entry_fields(entry)
    if fields['d'] == name then
      unindex_entry(topic, entry_seq(entry), fields)
      pieces[#pieces + 1] = entry[1]
      ids[#ids + 1] = fields['i'] ~= '' and fields['i'] or nil
    end
  end
  drop_entries(topic, pieces)
  return #pieces
end

local function drop_erased_pieces(topic, name, first, closing, ids)
  local dropped = 0
  for _, kept in ipairs(call('ZRANGEBYSCORE', prefix .. 'z:' .. topic, first, closing)) do
    local id, piece = string.match(kept, '^%d+\n%d+\n([^\n]*)\n(.*)$')
    if piece == 'd\n' .. name then
      call('ZREM', prefix .. 'z:' .. topic, kept)
      ids[#ids + 1] = id ~= '' and id or nil
      dropped = dropped + 1
    end
  end
  return dropped
end

-- XDEL in the middle of a stream only marks the entry, and the server frees a node of a stream only when all its entries
-- are marked. So the memory of dropped pieces stays in use until the stream is copied (see `scrub`). That is due when as
-- many entries were dropped since the last copy as are left: a copy then costs no more than the appends that led to it.
local function note_garbage(topic, dropped)
  local state = prefix .. 's:' .. topic
  local garbage = call('HINCRBY', state, 'w', dropped)
  if garbage >= GARBAGE_MIN and garbage >= call('XLEN', prefix .. 't:' .. topic) then
    call('HDEL', state, 'w')
    call('SADD', prefix .. 'stale', topic)
  end
end

-- Drop one page of the pieces of one closed draft. Returns how many pieces were dropped and whether there may be more.
local function compact()
  local topic, min_age, page = take(), take_number(), take_number()
  local closed = prefix .. 'f:' .. topic
  local draft = call('ZRANGEBYSCORE', closed, '-inf', digits(now_ms() - min_age), 'LIMIT', 0, 1)[1]
  if not draft then
    return {0, 0}
  end
  local first, closing, name = string.match(draft, '^(%d+) (%d+) (.*)$')
  local ids = {}
  local entries = call('XRANGE', prefix .. 't:' .. topic, '0-' .. first, '0-' .. closing, 'COUNT', page)
  local dropped = drop_pieces(topic, name, entries, ids) + drop_erased_pieces(topic, name, first, closing, ids)
  keep_removed_ids(topic, ids)
  local at = call('ZSCORE', closed, draft)
  call('ZREM', closed, draft)
  if #entries == page then -- continue after this page
    local next_seq = digits(tonumber(entry_seq(entries[page])) + 1)
    call('ZADD', closed, at, next_seq .. ' ' .. closing .. ' ' .. name)
  end
  if dropped > 0 then
    note_garbage(topic, dropped)
  end
  return {dropped, 1}
end

-- --- erase and delete

-- Hash `scrub` records that content was deleted whose bytes are still in memory: n = number of deletions since the last
-- scrub, a = time of the first of them, r = the next scrub should not begin before this time, b = when the running scrub
-- began. Times are in ms.
local function ask_for_scrub()
  if call('HINCRBY', prefix .. 'scrub', 'n', 1) == 1 then
    call('HSET', prefix .. 'scrub', 'a', now_text())
  end
end

local function erase()
  local topic, forget, found = take(), take() == '1', 0
  for i = position + 1, #arguments do
    if forget then forget_body(topic, arguments[i]) end
    if erase_record(topic, arguments[i]) then found = found + 1 end
  end
  ask_for_scrub()
  return found
end

-- Delete a topic. Its state stays, so that it can never be written again. Adds the names of its blobs to `freed`.
local function delete_topic(topic, freed)
  if is_deleted(topic) then
    return
  end
  local last = digits(last_seq(topic))
  local active = call('ZSCORE', prefix .. 'k:' .. kind_of(topic), topic) or now_text()
  unlist(topic)
  local held = call('HGETALL', prefix .. 'B:' .. topic)
  for i = 2, #held, 2 do
    release_blobs(held[i])
    freed[#freed + 1] = held[i]
  end
  for _, part in ipairs({'t:', 'h:', 'i:', 'j:', 'z:', 'g:', 'f:', 'B:'}) do
    call('UNLINK', prefix .. part .. topic)
  end
  call('SREM', prefix .. 'stale', topic)
  call('HSET', prefix .. 's:' .. topic, 'x', 1, 'f', last, 'g', last, 'a', active)
  list_as_deleted(topic, active)
  notify(topic, '')
  notify_kind(topic, kind_of(topic))
end

-- Drop the lanes of a conversation. Its copies are 'seq topic', or '@ topic' for an inbox whose mail was removed earlier;
-- every inbox among them may have a lane of this conversation. This reads all copies, 0.5 µs each, because the owners
-- have to be fenced in the same step that deletes the topics.
local function drop_lanes(conversation)
  drop_lane(conversation, conversation)
  local seen = {}
  for _, member in ipairs(call('SMEMBERS', prefix .. 'c:' .. conversation)) do
    local topic = string.sub(member, string.find(member, ' ', 1, true) + 1)
    if not seen[topic] then
      seen[topic] = true
      local kind, name = string.match(topic, '^([^:]*):(.*)$')
      if kind == 'chat' or kind == 'control' then
        drop_lane(name, conversation)
      end
    end
  end
end

-- Delete topics, and with a conversation its lanes. Set `erasing` lists the conversations whose copies `erase_copies`
-- has to erase: it is the caller's next step, or part of a scrub if the caller dies.
local function delete()
  local names, conversation = take_list(), take()
  local freed = {} -- lists of blobs that deleted records named
  if conversation ~= '' then
    drop_lanes(conversation) -- before the head that names their principal
  end
  for _, topic in ipairs(names) do
    delete_topic(topic, freed)
  end
  if conversation ~= '' then
    call('SADD', prefix .. 'erasing', conversation)
    for _, blobs in ipairs(freed) do
      drop_unnamed_blobs(blobs)
    end
    ask_for_scrub()
  end
  return 1
end

-- --- expiry

-- Whether a topic was created, or its head set or a record appended, after some time.
local function is_active(topic, since)
  local last = call('XREVRANGE', prefix .. 't:' .. topic, '+', '-', 'COUNT', 1)[1]
  local at = last and tonumber(entry_fields(last)['a']) or 0
  local active = tonumber(call('ZSCORE', prefix .. 'k:' .. kind_of(topic), topic) or 0)
  return at > since or active > since
end

-- Whether mail of a conversation waits: in a lane, or in an inbox and not yet sorted into a lane. Like `drop_lanes`, it
-- reads all copies of the conversation, but looks at each inbox and its lane once.
local function has_mail(conversation)
  local sorted = {} -- by topic: how far an inbox is sorted into lanes; false for another topic
  for _, member in ipairs(call('SMEMBERS', prefix .. 'c:' .. conversation)) do
    local space = string.find(member, ' ', 1, true)
    local topic, seq = string.sub(member, space + 1), tonumber(string.sub(member, 1, space - 1))
    if sorted[topic] == nil then
      local kind, name = string.match(topic, '^([^:]*):(.*)$')
      local is_inbox = kind == 'chat' or kind == 'control'
      if is_inbox and call('EXISTS', prefix .. 'm:' .. lane_name(name, conversation)) == 1 then return true end
      sorted[topic] = is_inbox and tonumber(call('HGET', prefix .. 'q:' .. name, kind) or 0)
    end
    local entry = seq and sorted[topic] and seq > sorted[topic] and entry_at(topic, digits(seq))
    if entry and is_mail({fields = entry_fields(entry)}) then return true end
  end
  return false
end

-- Delete a conversation whose topics were not used for some ms, and of which no mail waits. Returns whether it was (or,
-- in a dry run, would be) deleted. The arguments of `delete` follow.
local function expire()
  local since, dry, first = now_ms() - take_number(), take() == '1', position
  local topics, conversation = take_list(), take()
  if is_deleted(topics[1]) then -- after a lost reply the caller still has to erase the copies
    return not dry and call('SISMEMBER', prefix .. 'erasing', conversation) or 0
  end
  if not call('ZSCORE', prefix .. 'k:' .. kind_of(topics[1]), topics[1]) then
    return 0 -- there is no such conversation
  end
  for _, topic in ipairs(topics) do
    if not is_deleted(topic) and is_active(topic, since) then return 0 end
  end
  if has_mail(conversation) then
    return 0
  end
  if not dry then
    position = first
    delete()
  end
  return 1
end

-- Erase one page of the copies of a deleted conversation in other topics. Returns whether there may be more.
local function erase_copies()
  local conversation, page = take(), take_number()
  local copies = prefix .. 'c:' .. conversation
  for _, member in ipairs(call('SPOP', copies, page)) do
    local seq, topic = string.match(member, '^(%S+) (.*)$')
    if seq ~= '@' then
      local blobs = call('HGET', prefix .. 'B:' .. topic, seq)
      forget_body(topic, seq)
      erase_record(topic, seq)
      if blobs then drop_unnamed_blobs(blobs) end
    end
  end
  if call('EXISTS', copies) == 1 then
    return 1
  end
  call('SREM', prefix .. 'erasing', conversation)
  return 0
end

-- --- clean-up

-- XDEL in the middle of a stream only marks the entry: its content stays in memory and in every dump. A scrub therefore
-- copies the remaining entries into a new stream, one page per call, and then replaces the old stream with it.
-- Set `stale` lists the topics that need it. Key `scrubber` names the process that scrubs, until it expires.
local function lease_scrub(token)
  call('SET', prefix .. 'scrubber', token, 'PX', SCRUB_LEASE_MS)
end

-- Whether this process still scrubs; extends its lease. A process whose lease has expired stops, even if no other one
-- holds it: another may have scrubbed in between, and the deletions that the late one has counted are served already.
local function holds_scrub(token)
  local held = call('GET', prefix .. 'scrubber') == token
  if held then
    lease_scrub(token)
  end
  return held
end

-- The state of `ScrubState`, and the server's time.
local function scrub_state()
  local state = call('HMGET', prefix .. 'scrub', 'n', 'a', 'r')
  return {now_ms(), tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)}
end

-- Begin a scrub. Returns the number of deletions that it serves, or -1 while another process scrubs.
local function scrub_begin()
  local token = take()
  local requests = tonumber(call('HGET', prefix .. 'scrub', 'n') or 0)
  if requests > 0 then
    local holder = call('GET', prefix .. 'scrubber')
    if holder and holder ~= token then
      return -1
    end
    lease_scrub(token)
    call('HSET', prefix .. 'scrub', 'b', now_text())
  end
  return requests
end

-- Copy one page of a topic. Returns the seq to continue after, '' at the end, or nothing if it is part of a scrub that
-- another process may have taken over. A call that is repeated after a lost reply continues where the copy ends.
local function scrub()
  local topic, token, cursor, page, leased = take(), take(), take(), take_number(), take() == '1'
  if leased and not holds_scrub(token) then
    return false
  end
  local stream, copy = prefix .. 't:' .. topic, prefix .. 'T:' .. token
  if call('SISMEMBER', prefix .. 'stale', topic) == 0 then -- this call is repeated, or another process was faster
    call('UNLINK', copy)
    return ''
  end
  local copied = call('XREVRANGE', copy, '+', '-', 'COUNT', 1)[1]
  local entries = call('XRANGE', stream, '(' .. (copied and copied[1] or '0-' .. cursor), '+', 'COUNT', page)
  for _, entry in ipairs(entries) do
    call('XADD', copy, entry[1], unpack(entry[2]))
  end
  if #entries == page then
    call('PEXPIRE', copy, SCRUB_LEASE_MS) -- it may hold what is deleted meanwhile
    return entry_seq(entries[page])
  end
  local left = call('XLEN', stream)
  if call('XLEN', copy) ~= left then -- entries were removed between two pages: start again
    call('UNLINK', copy)
    return '0'
  end
  if left > 0 then
    call('XSETID', copy, '0-' .. digits(last_seq(topic)))
    call('PERSIST', copy)
    call('RENAME', stream, copy .. ':old')
    call('RENAME', copy, stream)
    call('UNLINK', copy .. ':old')
  end
  call('SREM', prefix .. 'stale', topic)
  return ''
end

-- End a scrub that has served this number of deletions. Returns whether no deletion needs another one.
local function scrub_end()
  local token, served = take(), take_number()
  local state, now = prefix .. 'scrub', now_ms()
  if not holds_scrub(token) then -- taken over, or this call is repeated after a lost reply
    return call('HEXISTS', state, 'n') == 0 and 1 or 0
  end
  call('DEL', prefix .. 'scrubber')
  local began = call('HGET', state, 'b')
  call('HDEL', state, 'b')
  call('HSET', state, 'r', digits(now + (now - tonumber(began)) * SCRUB_TIME_SHARE))
  if call('HINCRBY', state, 'n', -served) > 0 then
    call('HSET', state, 'a', began) -- the others came after the scrub had begun
    return 0
  end
  call('HDEL', state, 'n', 'a')
  return 1
end

-- Drop a page of blobs that no record names and that are older than some ms. Returns how many were dropped, or in a dry
-- run how many there are.
local function sweep_blobs()
  local oldest_kept, page, dry = digits(now_ms() - take_number()), take_number(), take() == '1'
  if dry then
    return call('ZCOUNT', prefix .. 'loose', '-inf', oldest_kept)
  end
  local names = call('ZRANGEBYSCORE', prefix .. 'loose', '-inf', oldest_kept, 'LIMIT', 0, page)
  for _, name in ipairs(names) do
    drop_blob(name)
  end
  return #names
end

register('trim', trim, 'allow-oom')
register('compact', compact, 'allow-oom')
register('erase', erase, 'allow-oom')
register('delete', delete, 'allow-oom')
register('expire', expire, 'allow-oom')
register('erase_copies', erase_copies, 'allow-oom')
register('scrub_state', scrub_state, 'no-writes')
register('scrub_begin', scrub_begin, 'allow-oom')
register('scrub', scrub)
register('scrub_end', scrub_end, 'allow-oom')
register('sweep_blobs', sweep_blobs, 'allow-oom')
