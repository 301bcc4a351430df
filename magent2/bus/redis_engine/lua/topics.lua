-- Topics: state, listing and notification.
--
-- Keys of a topic: stream `t`, head `h`, and, once something was removed from the topic, hash `s` with
-- f = floor, g = number of entries that are gone from the stream, x = deleted, a = last activity (deleted topics only),
-- w = number of entries that were compacted since the stream was last copied (see `note_garbage` in retention.lua),
-- e = for each epoch in which its numbers jumped 'last-base', joined by commas (see `begin_numbers` in records.lua).
-- Seqs are dense when they are assigned, and a jump counts as entries that are gone. The last seq is therefore the
-- stream's length plus the number of gone entries.
-- Listing: set `kinds`; per kind `k`, and per kind and owner `o`, the topics by the time of their last activity.
-- Kind ':deleted' lists deleted topics. Names of several parts ('entity:user:ann', 'stream:c1~agent-1') are also in `p` of
-- their kind, all with the score 0, so that a prefix finds them. An entry there never changes, unlike one in `k`.
-- Channel `n` notifies subscribers of the topic. Channel `n` of 'kind:\n' tells the names of topics whose entry in `k` or
-- whose head has changed.
local function kind_of(topic)
  return string.match(topic, '^([^:]*):') or ''
end

-- Whether the name after the kind has several parts.
local function has_parts(topic)
  local colon = string.find(topic, ':', 1, true)
  return colon and string.find(topic, NAME_SEPARATORS, colon + 1)
end

local function is_deleted(topic)
  return call('HGET', prefix .. 's:' .. topic, 'x')
end

-- The first of these topics that is deleted, or nil. The list of deleted topics answers for many of them at once.
local function first_deleted(topics)
  for first = 1, #topics, UNPACK_MAX do
    local last = math.min(first + UNPACK_MAX - 1, #topics)
    local listed = call('ZMSCORE', prefix .. 'k::deleted', unpack(topics, first, last))
    for i = first, last do
      if listed[i - first + 1] then
        return topics[i]
      end
    end
  end
end

local function last_seq(topic)
  return call('XLEN', prefix .. 't:' .. topic) + (call('HGET', prefix .. 's:' .. topic, 'g') or 0)
end

-- The last seqs of these topics. Few topics have a state, so one command for all of them saves one for each.
local function last_seqs(topics)
  local states, lengths = {}, {}
  for i, topic in ipairs(topics) do
    states[i], lengths[i] = prefix .. 's:' .. topic, call('XLEN', prefix .. 't:' .. topic)
  end
  if #topics > 0 and call('EXISTS', unpack(states)) > 0 then
    for i, state in ipairs(states) do
      lengths[i] = lengths[i] + (call('HGET', state, 'g') or 0)
    end
  end
  return lengths
end

local function topic_state(topic)
  local state = call('HMGET', prefix .. 's:' .. topic, 'f', 'g', 'x', 'a', 'e')
  return {
    floor = tonumber(state[1] or 0),
    last = call('XLEN', prefix .. 't:' .. topic) + (state[2] or 0),
    deleted = state[3] and 1 or 0,
    active = state[4],
    jumps = state[5],
  }
end

local function channel_of(topic)
  return prefix .. 'n:' .. topic
end

local function kind_channel(kind)
  return prefix .. 'n:' .. kind .. ':\n'
end

-- Wake the watchers of a topic. The message is empty, or it holds the new records (see `notification` in append.lua).
local function notify(topic, message)
  call('PUBLISH', channel_of(topic), message)
end

-- Wake the watchers of a kind.
local function notify_kind(topic, kind)
  call('PUBLISH', kind_channel(kind), topic)
end

local function index_name(topic, kind)
  if has_parts(topic) then
    call('ZADD', prefix .. 'p:' .. kind, 0, topic)
  end
end

-- Index a topic that has just been added to the list of its kind.
local function list_new(topic, kind)
  call('SADD', prefix .. 'kinds', kind)
  index_name(topic, kind)
end

-- Record activity of a topic in the lists of its kind and of its owner. Returns the kind, whose watchers the caller wakes.
local function touch(topic, at, owner_before, owner)
  local kind = kind_of(topic)
  if call('ZADD', prefix .. 'k:' .. kind, at, topic) == 1 then
    list_new(topic, kind)
  end
  if owner_before and owner_before ~= owner then
    call('ZREM', prefix .. 'o:' .. kind .. ':' .. owner_before, topic)
  end
  if owner then
    call('ZADD', prefix .. 'o:' .. kind .. ':' .. owner, at, topic)
  end
  return kind
end

local function unlist(topic)
  local kind = kind_of(topic)
  call('ZREM', prefix .. 'k:' .. kind, topic)
  call('ZREM', prefix .. 'p:' .. kind, topic)
  local owner = call('HGET', prefix .. 'h:' .. topic, 'owner')
  if owner then
    call('ZREM', prefix .. 'o:' .. kind .. ':' .. owner, topic)
  end
end

local function list_as_deleted(topic, active)
  call('SADD', prefix .. 'kinds', ':deleted')
  call('ZADD', prefix .. 'k::deleted', active, topic)
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
