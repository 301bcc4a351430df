-- Topics: state, listing and notification.
--
-- Keys of a topic: stream `t`, head `h`, and, once something was removed from the topic, hash `s` with
-- f = floor, g = number of entries that are gone from the stream, x = deleted, a = last activity (deleted topics only).
-- Seqs are dense when they are assigned. The last seq is therefore the stream's length plus the number of gone entries.
-- Listing: set `kinds`; per kind `k`, and per kind and owner `o`, the topics by the time of their last activity.
-- Kind ':deleted' lists deleted topics. Channel `n` notifies subscribers of the topic.
local function kind_of(topic)
  return string.match(topic, '^([^:]*):') or ''
end

local function is_deleted(topic)
  return call('HGET', prefix .. 's:' .. topic, 'x')
end

local function last_seq(topic)
  return call('XLEN', prefix .. 't:' .. topic) + (call('HGET', prefix .. 's:' .. topic, 'g') or 0)
end

local function topic_state(topic)
  local state = call('HMGET', prefix .. 's:' .. topic, 'f', 'g', 'x', 'a')
  return {
    floor = tonumber(state[1] or 0),
    last = call('XLEN', prefix .. 't:' .. topic) + (state[2] or 0),
    deleted = state[3] and 1 or 0,
    active = state[4],
  }
end

-- Record activity of a topic in the lists of its kind and of its owner.
local function touch(topic, at, owner_before, owner)
  local kind = kind_of(topic)
  call('SADD', prefix .. 'kinds', kind)
  call('ZADD', prefix .. 'k:' .. kind, at, topic)
  if owner_before and owner_before ~= owner then
    call('ZREM', prefix .. 'o:' .. kind .. ':' .. owner_before, topic)
  end
  if owner then
    call('ZADD', prefix .. 'o:' .. kind .. ':' .. owner, at, topic)
  end
end

local function unlist(topic)
  local kind = kind_of(topic)
  call('ZREM', prefix .. 'k:' .. kind, topic)
  local owner = call('HGET', prefix .. 'h:' .. topic, 'owner')
  if owner then
    call('ZREM', prefix .. 'o:' .. kind .. ':' .. owner, topic)
  end
end

local function list_as_deleted(topic, active)
  call('SADD', prefix .. 'kinds', ':deleted')
  call('ZADD', prefix .. 'k::deleted', active, topic)
end

-- Wake the watchers of a topic. The message is empty, or it holds the new records (see `notification` in append.lua).
local function notify(topic, message)
  call('PUBLISH', prefix .. 'n:' .. topic, message)
end

-- A topic as a reply: name, last, floor, deleted, active, then names and texts of the head.
local function topic_reply(topic)
  local state = topic_state(topic)
  local active = state.active or call('ZSCORE', prefix .. 'k:' .. kind_of(topic), topic) or '0'
  local reply = {topic, state.last, state.floor, state.deleted, active}
  for _, text in ipairs(call('HGETALL', prefix .. 'h:' .. topic)) do
    reply[#reply + 1] = text
  end
  return reply
end
