-- One plain record with an id: what `append` does, in one piece, because a shared function costs every run of a script.
local topic, id, digest, lane, body = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local ids = P .. 'i:' .. topic
local known = call('HGET', ids, id)
if known then
  local seq, answer, first = string.match(known, '^(%d+):?([%d,]*) (.*)$')
  answer = answer ~= '' and answer or seq
  if first ~= digest then
    return {'IdConflict', topic, id, answer}
  end
  return {'repeat', answer}
end
if call('HGET', P .. 's:' .. topic, 'x') then
  return {'TopicDeleted', topic}
end

local time = call('TIME')
local at = time[1] .. string.format('%03d', time[2] / 1000)
local seq = string.sub(call('XADD', P .. 't:' .. topic, '0-*', 'i', id, 'a', at, 'l', lane, 'p', body), 3)
call('HSET', ids, id, seq .. ': ' .. digest)
if seq == '1' then
  local kind = string.match(topic, '^([^:]*):') or ''
  call('ZADD', P .. 'k:' .. kind, 'NX', at, topic)
  call('SADD', P .. 'kinds', kind)
end
local mark = string.byte(lane)
if (mark == 61 or mark == 45) and #lane > 1 then
  call('SADD', P .. 'c:' .. string.sub(lane, 2), seq .. ' ' .. topic)
end
local message = #body > NOTIFICATION_MAX_BYTES and seq or seq .. '\n' .. at .. '\n' .. id .. '\n\n\n-\n\n' .. body
call('PUBLISH', P .. 'n:' .. topic, message)
return {'done', seq}
