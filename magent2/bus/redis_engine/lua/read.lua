-- Reading: pages of a topic, single records, topics and their heads.

-- Whether a seq lies between the last record of one epoch and the numbers of the next. If a record had it, it was lost.
local function was_jumped(jumps, seq)
  for last, base in string.gmatch(jumps or '', '(%d+)-(%d+)') do
    if seq > tonumber(last) and seq < tonumber(base) then
      return true
    end
  end
  return false
end

-- The seq to read after, or nil when the log does not have the cursor any more.
local function cursor_seq(topic, state, how, cursor)
  if how == 'oldest' then
    return digits(state.floor)
  end
  if how == 'after' then
    local seq = tonumber(cursor)
    return seq >= state.floor and seq <= state.last and not was_jumped(state.jumps, seq) and cursor or nil
  end
  local known = known_id(topic, cursor)
  local seq = known and id_seq(known)
  return seq and (entry_at(topic, seq) or erased_at(topic, seq)) and seq or nil
end

-- Entries and erased records are separate lists, each in the order of reading; the caller merges them.
local function read_forward(topic, seq, limit)
  local entries = call('XRANGE', prefix .. 't:' .. topic, '(0-' .. seq, '+', 'COUNT', limit)
  local stop = #entries == limit and entry_seq(entries[limit]) or '+inf'
  return entries, call('ZRANGEBYSCORE', prefix .. 'z:' .. topic, '(' .. seq, stop, 'LIMIT', 0, limit)
end

local function read_backward(topic, stop, stop_score, limit)
  local entries = call('XREVRANGE', prefix .. 't:' .. topic, stop, '-', 'COUNT', limit)
  local low = #entries == limit and entry_seq(entries[limit]) or '-inf'
  return entries, call('ZREVRANGEBYSCORE', prefix .. 'z:' .. topic, stop_score, low, 'LIMIT', 0, limit)
end

-- how: 'after' a seq, after an 'id', from the 'oldest', the 'last' records, or 'before' a seq.
local function read()
  local topic, how, cursor, limit = take(), take(), take(), take_number()
  local state = topic_state(topic)
  if state.deleted == 1 then -- for any cursor: a follower has to learn that the topic is gone
    return {'done', state.last, state.floor, 1, {}, {}}
  end
  local entries, erased
  if how == 'last' then
    entries, erased = read_backward(topic, '+', '+inf', limit)
  elseif how == 'before' then
    entries, erased = read_backward(topic, '(0-' .. cursor, '(' .. cursor, limit)
  else
    local seq = cursor_seq(topic, state, how, cursor)
    if not seq then
      return {'UnknownCursor', topic, cursor, digits(state.floor), digits(state.last)}
    end
    entries, erased = read_forward(topic, seq, limit)
  end
  return {'done', state.last, state.floor, state.deleted, entries, erased}
end

-- One record, by 'id' or by 'seq'.
local function find()
  local topic, by, name = take(), take(), take()
  local seq = name
  if by == 'id' then
    local known = known_id(topic, name)
    if not known then
      return false
    end
    seq = id_seq(known)
  end
  local entry = entry_at(topic, seq)
  local found = entry and entry[2] or erased_at(topic, seq)
  return found and {seq, found}
end

local function describe()
  local found = {}
  for i = position + 1, #arguments do
    found[#found + 1] = topic_reply(arguments[i])
  end
  return found
end

-- --- listing topics

-- Order of the list: by time of activity, then by name, both descending.
local function comes_first(a, b)
  if a.at ~= b.at then return a.at > b.at end
  return a.topic > b.topic
end

-- Collect topics of one sorted set into `found`. Returns the last topic looked at, if the set was not read to its end.
local function collect_topics(key, name_prefix, before, limit, found)
  local top, offset, taken = before and digits(before.at) or '+inf', 0, 0

  local function follows(item)
    return not before or comes_first(before, item)
  end

  while true do
    local page = call('ZREVRANGEBYSCORE', key, top, '-inf', 'WITHSCORES', 'LIMIT', offset, TOPICS_PAGE)
    for i = 1, #page, 2 do
      local item = {topic = page[i], at = tonumber(page[i + 1])}
      if string.sub(item.topic, 1, #name_prefix) == name_prefix and follows(item) then
        found[#found + 1] = item
        taken = taken + 1
      end
    end
    offset = offset + TOPICS_PAGE
    if #page < 2 * TOPICS_PAGE then return nil end
    local last = {topic = page[#page - 1], at = tonumber(page[#page])}
    if follows(last) and (taken > limit or offset >= TOPICS_SCAN) then return last end
  end
end

-- Collect the topics below a prefix of several parts into `found`, if they are few enough for one call.
local function collect_by_name(kind, key, name_prefix, before, found)
  local names, low, high = prefix .. 'p:' .. kind, '[' .. name_prefix, '(' .. name_prefix .. '\255'
  if call('ZLEXCOUNT', names, low, high) > TOPICS_SCAN then
    return false
  end
  for _, topic in ipairs(call('ZRANGEBYLEX', names, low, high)) do
    local at = call('ZSCORE', key, topic)
    local item = {topic = topic, at = tonumber(at or 0)}
    if at and (not before or comes_first(before, item)) then
      found[#found + 1] = item
    end
  end
  return true
end

-- Topics after `before` in the order of the list. Where a kind was not read to its end, the list ends there for all
-- kinds, because topics of that kind are missing after that edge; the edge is returned to continue from.
local function topics()
  local name_prefix, owner, before_at, before_topic, limit = take(), take(), take(), take(), take_number()
  local before = before_at ~= '' and {at = tonumber(before_at), topic = before_topic} or nil
  local kind = string.match(name_prefix, '^([^:]*):')
  local found, edge = {}, nil
  for _, name in ipairs(kind and {kind} or call('SMEMBERS', prefix .. 'kinds')) do
    if kind or string.sub(name, 1, 1) ~= ':' then
      local key = owner == '' and prefix .. 'k:' .. name or prefix .. 'o:' .. name .. ':' .. owner
      local by_name = has_parts(name_prefix) and collect_by_name(name, key, name_prefix, before, found)
      local last = not by_name and collect_topics(key, name_prefix, before, limit, found)
      if last and (not edge or comes_first(last, edge)) then edge = last end
    end
  end

  table.sort(found, comes_first)
  local reply = {}
  for _, item in ipairs(found) do
    if #reply > limit or (edge and comes_first(edge, item)) then break end
    reply[#reply + 1] = topic_reply(item.topic)
  end
  return {reply, edge and digits(edge.at) or '', edge and edge.topic or ''}
end

-- The step to schema 2: index the names of one page of the topics of a kind. Returns the cursor of the next page.
local function index_names()
  local kind, cursor = take(), take()
  local page = call('ZSCAN', prefix .. 'k:' .. kind, cursor, 'COUNT', TOPICS_PAGE)
  for i = 1, #page[2], 2 do
    index_name(page[2][i], kind)
  end
  return page[1]
end

register('read', read, 'no-writes')
register('find', find, 'no-writes')
register('describe', describe, 'no-writes')
register('topics', topics, 'no-writes')
register('index_names', index_names)
