-- A topic: stream `t`, head `h`, and, once something was removed from it, state `s`:
-- f = floor, g = how many entries are gone from the stream, x = deleted, a = when it was last active (deleted only).
-- Seqs are dense when they are given, so the last one is what is there plus what is gone.
local function kind_of(topic)
  return string.match(topic, '^([^:]*):') or ''
end

local function is_deleted(topic)
  return call('HGET', P .. 's:' .. topic, 'x')
end

local function last_seq(topic)
  return call('XLEN', P .. 't:' .. topic) + (call('HGET', P .. 's:' .. topic, 'g') or 0)
end

local function topic_state(topic)
  local state = call('HMGET', P .. 's:' .. topic, 'f', 'g', 'x', 'a')
  return {
    floor = tonumber(state[1] or 0),
    last = call('XLEN', P .. 't:' .. topic) + (state[2] or 0),
    deleted = state[3] and 1 or 0,
    active = state[4],
  }
end

-- Listing: kinds, and per kind (and owner) the topics by when they were active.
local function touch(topic, at, owner_before, owner)
  local kind = kind_of(topic)
  call('SADD', P .. 'kinds', kind)
  call('ZADD', P .. 'k:' .. kind, at, topic)
  if owner_before and owner_before ~= owner then
    call('ZREM', P .. 'o:' .. kind .. ':' .. owner_before, topic)
  end
  if owner then
    call('ZADD', P .. 'o:' .. kind .. ':' .. owner, at, topic)
  end
end

local function unlist(topic)
  local kind = kind_of(topic)
  call('ZREM', P .. 'k:' .. kind, topic)
  local owner = call('HGET', P .. 'h:' .. topic, 'owner')
  if owner then
    call('ZREM', P .. 'o:' .. kind .. ':' .. owner, topic)
  end
end

local function notify(topic, news)
  call('PUBLISH', P .. 'n:' .. topic, news)
end
