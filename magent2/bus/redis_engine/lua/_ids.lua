-- Ids of a topic: `i` id -> 'seq digest'; for the key of an append 'seq: digest', and 'seq:seq,seq,… digest' when that had
-- several records. An id is known as long as its record is in the log; `j` queues those that outlived it, oldest first.
local function known_id(topic, id)
  return call('HGET', P .. 'i:' .. topic, id)
end

local function id_seq(value)
  return string.match(value, '^%d+')
end

-- The seqs to answer a repeat with, and the digest.
local function id_parts(value)
  local seq, answer, digest = string.match(value, '^(%d+):?([%d,]*) (.*)$')
  return answer ~= '' and answer or seq, digest
end

local function remember_id(topic, id, answer, digest)
  call('HSET', P .. 'i:' .. topic, id, answer .. ' ' .. digest)
end

-- Records left the log: of such ids only the latest stay known.
local function outlive(topic, ids)
  if #ids == 0 then
    return
  end
  local queue = P .. 'j:' .. topic
  local excess = call('RPUSH', queue, unpack(ids)) - IDS_KEPT
  if excess > 0 then
    call('HDEL', P .. 'i:' .. topic, unpack(call('LPOP', queue, excess)))
  end
end
