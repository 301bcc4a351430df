-- how: 'after' a seq, 'id', 'oldest', 'last', 'before' a seq. Entries and erased ones come apart, both in order of reading.
local topic, how, cursor, limit = take(), take(), take(), take_number()
local state = topic_state(topic)
if state.deleted == 1 then -- whatever the cursor was: a follower has to learn that the topic is gone
  return {'done', state.last, state.floor, 1, {}, {}}
end

local function resolve()
  if how == 'oldest' then
    return digits(state.floor)
  end
  if how == 'after' then
    local seq = tonumber(cursor)
    return seq >= state.floor and seq <= state.last and cursor
  end
  local known = known_id(topic, cursor)
  local seq = known and id_seq(known)
  return seq and (entry_at(topic, seq) or erased_at(topic, seq)) and seq
end

local function forward(seq)
  local entries = call('XRANGE', P .. 't:' .. topic, '(0-' .. seq, '+', 'COUNT', limit)
  local stop = #entries == limit and entry_seq(entries[limit]) or '+inf'
  return entries, call('ZRANGEBYSCORE', P .. 'z:' .. topic, '(' .. seq, stop, 'LIMIT', 0, limit)
end

local function backward(stop, stop_score)
  local entries = call('XREVRANGE', P .. 't:' .. topic, stop, '-', 'COUNT', limit)
  local low = #entries == limit and entry_seq(entries[limit]) or '-inf'
  return entries, call('ZREVRANGEBYSCORE', P .. 'z:' .. topic, stop_score, low, 'LIMIT', 0, limit)
end

local entries, erased
if how == 'last' then
  entries, erased = backward('+', '+inf')
elseif how == 'before' then
  entries, erased = backward('(0-' .. cursor, '(' .. cursor)
else
  local seq = resolve()
  if not seq then
    return {'UnknownCursor', topic, cursor, digits(state.floor), digits(state.last)}
  end
  entries, erased = forward(seq)
end
return {'done', state.last, state.floor, state.deleted, entries, erased}
