-- Export and import of a whole log, a page at a time.

-- Topics of every kind, deleted ones included, in the order (kind, active, name) after a position in it.
-- A topic that becomes active meanwhile moves ahead and is exported again; no topic is skipped.
local function dump_topics()
  local after_kind, after_at, after_topic, limit = take(), take(), take(), take_number()
  local kinds = call('SMEMBERS', prefix .. 'kinds')
  table.sort(kinds)

  local function start_in(kind)
    local key = prefix .. 'k:' .. kind
    if after_topic == '' or kind ~= after_kind then
      return 0
    end
    if call('ZSCORE', key, after_topic) == after_at then
      return call('ZRANK', key, after_topic) + 1
    end
    return call('ZCOUNT', key, '-inf', '(' .. after_at)
  end

  local found = {}
  for _, kind in ipairs(kinds) do
    if kind >= after_kind and #found < limit then
      local start = start_in(kind)
      local page = call('ZRANGE', prefix .. 'k:' .. kind, start, start + limit - #found - 1, 'WITHSCORES')
      for i = 1, #page, 2 do
        found[#found + 1] = {kind, page[i + 1], topic_reply(page[i])}
      end
    end
  end
  return found
end

-- What the log clock adds to the server's clock.
local function clock_offset()
  return tonumber(call('HGET', prefix .. 'clock', 'o') or 0)
end

-- Lanes of an agent that have mail, by name, after a name. Owners are not exported: a held lane counts as ready.
local function dump_lanes()
  local agent, after, limit = take(), take(), take_number()
  local names, seen = {}, {}
  for _, index in ipairs({'u:', 'uc:'}) do
    for _, conversation in ipairs(call('ZRANGE', prefix .. index .. agent, 0, -1)) do
      if not seen[conversation] and '=' .. conversation > after then
        seen[conversation] = true
        names[#names + 1] = conversation
      end
    end
  end
  table.sort(names)

  local found = {}
  for i = 1, math.min(limit, #names) do
    local lane = lane_name(agent, names[i])
    local state = call('HMGET', prefix .. 'l:' .. lane, 's', 't')
    local mail = {}
    for _, member in ipairs(call('ZRANGE', prefix .. 'm:' .. lane, 0, -1)) do
      mail[#mail + 1] = {mail_topic(agent, member), string.sub(member, 2)}
    end
    local due = call('ZSCORE', prefix .. 'd:' .. agent, names[i])
    found[i] = {names[i], mail, state[2] or '0', due and digits(due - clock_offset()) or '', state[1] == 'parked' and 1 or 0}
  end
  return found
end

-- --- import: each function takes a number of rows, and calls `load_row` for each

local function load_each(load_row)
  return function()
    for _ = 1, take_number() do
      load_row()
    end
    return 1
  end
end

local function load_blob()
  keep_blob(take(), take(), take())
end

local function load_topic()
  local last, floor, deleted, active = take_number(), take(), take(), take()
  local _, heads = take_conditions_and_heads()
  local head = heads[1]
  local topic = head.topic
  local state, stream = prefix .. 's:' .. topic, prefix .. 't:' .. topic
  local gone = last - call('XLEN', stream)
  if floor ~= '0' or gone > 0 then
    call('HSET', state, 'f', floor, 'g', digits(gone))
  end
  if deleted == '1' then
    call('HSET', state, 'x', 1, 'a', active)
    list_as_deleted(topic, active)
    return
  end
  if last > 0 then -- XSETID needs a stream, and only XGROUP CREATE makes an empty one
    call('XGROUP', 'CREATE', stream, 'load', '0', 'MKSTREAM')
    call('XGROUP', 'DESTROY', stream, 'load')
    call('XSETID', stream, '0-' .. digits(last))
  end
  head.stored = stored_head(topic)
  notify_kind(topic, set_head(head, active))
end

-- Add an entry with a given seq. The stream's last id is set back for it: XADD only accepts ids after the last one.
local function add_entry_at(topic, seq, fields)
  local stream, last = prefix .. 't:' .. topic, digits(last_seq(topic))
  call('XSETID', stream, '0-' .. digits(tonumber(seq) - 1))
  call('XADD', stream, '0-' .. seq, unpack(fields))
  call('XSETID', stream, '0-' .. last)
  call('HINCRBY', prefix .. 's:' .. topic, 'g', -1)
end

-- Records come in the order of their seqs. A record that is there already is skipped.
local function load_record()
  local topic, seq, at, erased = take(), take(), take(), take()
  local id, lane, body, more = take(), take(), take(), take()
  if entry_at(topic, seq) or erased_at(topic, seq) then
    return
  end
  if erased == '1' then
    local _, _, mark, name = more_parts(more == '' and NO_MORE or more)
    call('ZADD', prefix .. 'z:' .. topic, seq, table.concat({seq, at, id, mark, name}, '\n'))
  else
    add_entry_at(topic, seq, all_fields(id, at, lane, body, more))
    index_copy(topic, seq, lane)
  end
  if more ~= '' then index_more(topic, seq, at, more) end
end

local function load_id()
  local topic, id, answer, digest = take(), take(), take(), take()
  if not known_id(topic, id) then
    remember_id(topic, id, answer, digest)
    local seq = id_seq(answer)
    if not entry_at(topic, seq) and not erased_at(topic, seq) then
      keep_removed_ids(topic, {id})
    end
  end
end

local function load_inbox()
  local agent, chat, control = take(), take(), take()
  call('HSET', prefix .. 'q:' .. agent, 'chat', chat, 'control', control)
  call('SADD', prefix .. 'agents', agent)
end

-- `due` is a time of the server's clock in ms, or '' for a lane that waits for no time.
local function load_lane()
  local agent, conversation, attempt, due, parked, members = take(), take(), take(), take(), take(), take_list()
  local lane = lane_name(agent, conversation)
  drop_lane(agent, conversation)
  for _, member in ipairs(members) do
    call('ZADD', prefix .. 'm:' .. lane, mail_score(member), member)
  end
  index_mail(agent, conversation, lane, members, true)
  if conversation ~= '' then
    call('SADD', prefix .. 'c:' .. conversation, '@ chat:' .. agent)
  end
  call('HSET', prefix .. 'l:' .. lane, 't', attempt)
  if parked == '1' then
    call('HSET', prefix .. 'l:' .. lane, 's', 'parked')
  elseif due ~= '' then
    call('HSET', prefix .. 'l:' .. lane, 's', 'later')
    call('ZADD', prefix .. 'd:' .. agent, digits(due + clock_offset()), conversation)
  else
    make_ready(agent, conversation, false)
  end
end

register('dump_topics', dump_topics, 'no-writes')
register('dump_lanes', dump_lanes, 'no-writes')
register('load_blobs', load_each(load_blob))
register('load_topics', load_each(load_topic))
register('load_records', load_each(load_record))
register('load_ids', load_each(load_id))
register('load_inboxes', load_each(load_inbox))
register('load_lanes', load_each(load_lane))
