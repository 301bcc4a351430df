-- Ids of a topic, in two generations: `i0` fills up, becomes `i1`, and the `i1` before it is forgotten.
-- id -> 'seq digest'; for the key of an append 'seq: digest', and 'seq:seq,seq,… digest' when that had several records.
local function known_id(topic, id)
  return call('HGET', P .. 'i0:' .. topic, id) or call('HGET', P .. 'i1:' .. topic, id)
end

local function id_seq(value)
  return string.match(value, '^%d+')
end

-- The seqs to answer a repeat with, and the digest.
local function id_parts(value)
  local seq, mark, answer, digest = string.match(value, '^(%d+)(:?)([%d,]*) (.*)$')
  return answer ~= '' and answer or seq, digest
end

local function remember_id(topic, id, answer, digest)
  call('HSET', P .. 'i0:' .. topic, id, answer .. ' ' .. digest)
end

local function age_ids(topic)
  if call('HLEN', P .. 'i0:' .. topic) >= IDS_KEPT then
    call('RENAME', P .. 'i0:' .. topic, P .. 'i1:' .. topic)
  end
end
