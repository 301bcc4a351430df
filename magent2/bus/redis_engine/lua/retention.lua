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
-- ('through'). Returns the floor and whether there may be more.
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
  return {digits(floor), dropped == page and 1 or 0}
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
  return {dropped, 1}
end

-- --- erase and delete

local function erase()
  local topic, forget, found = take(), take() == '1', 0
  for i = position + 1, #arguments do
    if forget then forget_body(topic, arguments[i]) end
    if erase_record(topic, arguments[i]) then found = found + 1 end
  end
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
end

-- Erase the copies of a conversation in other topics, and drop its lanes. Copies are 'seq topic', or '@ topic' for an
-- inbox whose mail was removed earlier; every inbox among them may have a lane of this conversation.
local function delete_copies(conversation, freed)
  local copies, agents = prefix .. 'c:' .. conversation, {[conversation] = true}
  for _, member in ipairs(call('SMEMBERS', copies)) do
    local seq, topic = string.match(member, '^(%S+) (.*)$')
    local kind, name = string.match(topic, '^([^:]*):(.*)$')
    if kind == 'chat' or kind == 'control' then
      agents[name] = true
    end
    if seq ~= '@' then
      forget_body(topic, seq)
      freed[#freed + 1] = call('HGET', prefix .. 'B:' .. topic, seq) or nil
      erase_record(topic, seq)
    end
  end
  for agent in pairs(agents) do
    drop_lane(agent, conversation)
  end
  call('DEL', copies)
end

local function delete()
  local names, conversation = take_list(), take()
  local freed = {} -- lists of blobs that deleted records named
  for _, topic in ipairs(names) do
    delete_topic(topic, freed)
  end
  if conversation ~= '' then
    delete_copies(conversation, freed)
    for _, blobs in ipairs(freed) do
      drop_unnamed_blobs(blobs)
    end
  end
  return 1
end

-- --- clean-up

-- XDEL in the middle of a stream only marks the entry: its content stays in memory and in every dump. `scrub` therefore
-- copies the remaining entries into a new stream, one page per call, and then replaces the old stream with it.
-- Set `stale` lists the topics that need it. Returns the seq to continue after, or nothing at the end.
local function scrub()
  local topic, token, cursor, page = take(), take(), take(), take_number()
  local stream, copy = prefix .. 't:' .. topic, prefix .. 'T:' .. token
  local entries = call('XRANGE', stream, '(0-' .. cursor, '+', 'COUNT', page)
  for _, entry in ipairs(entries) do
    call('XADD', copy, entry[1], unpack(entry[2]))
  end
  if #entries == page then
    call('PEXPIRE', copy, SCRUB_MEMORY_MS)
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
  return false
end

-- Drop a page of blobs that no record names and that are older than some ms. Returns how many were dropped.
local function sweep_blobs()
  local min_age, page = take_number(), take_number()
  local names = call('ZRANGEBYSCORE', prefix .. 'loose', '-inf', digits(now_ms() - min_age), 'LIMIT', 0, page)
  for _, name in ipairs(names) do
    drop_blob(name)
  end
  return #names
end

register('trim', trim, 'allow-oom')
register('compact', compact, 'allow-oom')
register('erase', erase, 'allow-oom')
register('delete', delete, 'allow-oom')
register('scrub', scrub)
register('sweep_blobs', sweep_blobs, 'allow-oom')
