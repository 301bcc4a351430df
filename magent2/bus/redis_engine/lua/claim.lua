local worker, nonce, lease, limit, mail_max = take(), take(), take_number(), take_number(), take_number()
local agents = {}
for i = 1, take_number() do
  agents[i] = take()
end
local now = now_ms()
local facts = P .. 'v:' .. worker

local function end_expired()
  local expired = call('ZRANGEBYSCORE', P .. 'w', '-inf', '(' .. digits(now), 'LIMIT', 0, EXPIRED_MAX)
  for _, other in ipairs(expired) do
    end_worker(other)
  end
end

local function wake_due(agent)
  local key = P .. 'd:' .. agent
  for _, conversation in ipairs(call('ZRANGEBYSCORE', key, '-inf', digits(now), 'LIMIT', 0, SORT_MAX)) do
    call('ZREM', key, conversation)
    local lane = lane_name(agent, conversation)
    if call('EXISTS', P .. 'm:' .. lane) == 1 then
      call('HSET', P .. 'l:' .. lane, 's', '')
      make_ready(agent, conversation, false)
    else
      rest(lane)
    end
  end
end

-- Puts mail into its lane; a lane that is ready by it at the end of the queue is added to `fresh`.
local function file(agent, conversation, member, control, fresh)
  local lane = lane_name(agent, conversation)
  local mail = P .. 'm:' .. lane
  call('ZADD', mail, mail_score(member), member)
  call('ZADD', P .. (control and 'uc:' or 'u:') .. agent, 'NX', string.sub(member, 2), conversation)
  local is_first = call('ZCARD', mail) == 1
  local state = (is_first or control) and call('HGET', P .. 'l:' .. lane, 's') or ''
  if is_first and state == '' and not control then
    fresh[#fresh + 1] = conversation
  elseif is_first and state == '' then
    make_ready(agent, conversation, true)
  elseif control and (state == 'later' or state == 'parked') then
    call('ZREM', P .. 'd:' .. agent, conversation)
    call('HSET', P .. 'l:' .. lane, 's', '')
    make_ready(agent, conversation, true)
  end
end

-- Whose mail an entry is; one that another program wrote is mail that names no conversation.
local function conversation_of(entry)
  for i = 1, #entry[2] - 1, 2 do
    if entry[2][i] == 'l' then
      local lane = entry[2][i + 1]
      local mark = string.byte(lane)
      return (mark == 61 or mark == 126) and string.sub(lane, 2) or nil
    end
  end
  return ''
end

-- Whether there is more to sort. Pages are small because entries come with their payloads.
local function sort_inbox(agent, kind, sorted)
  local topic, left, cursor = kind .. ':' .. agent, SORT_MAX, sorted
  local more, fresh = false, {}
  while left > 0 do
    local entries = call('XRANGE', P .. 't:' .. topic, '(0-' .. cursor, '+', 'COUNT', math.min(left, SORT_PAGE))
    for _, entry in ipairs(entries) do
      cursor = string.match(entry[1], '%d+$')
      local conversation = conversation_of(entry)
      if conversation then
        file(agent, conversation, (kind == 'control' and 'c' or 'm') .. cursor, kind == 'control', fresh)
      end
    end
    left = left - #entries
    more = left <= 0
    if #entries < SORT_PAGE then break end
  end
  if #fresh > 0 then
    call('RPUSH', P .. 'r:' .. agent, unpack(fresh))
  end
  if cursor ~= sorted then
    call('HSET', P .. 'q:' .. agent, kind, cursor)
    call('SADD', P .. 'agents', agent)
  end
  return more
end

local function sort_mail(agent)
  local sorted = call('HMGET', P .. 'q:' .. agent, 'control', 'chat')
  local control = sort_inbox(agent, 'control', sorted[1] or '0')
  local chat = sort_inbox(agent, 'chat', sorted[2] or '0')
  return control or chat
end

local function lane_reply(agent, conversation, lane, token, attempt, mail)
  local pending = #mail < mail_max and #mail or call('ZCARD', P .. 'm:' .. lane)
  return {agent, conversation, token, attempt, pending, mail}
end

local function hand_out(agent, conversation, lane, epoch)
  local key = P .. 'l:' .. lane
  local mail = mail_of(agent, lane, mail_max)
  local before = call('HGET', key, 't')
  if before then
    call('PERSIST', key)
  end
  local attempt = (before or 0) + 1
  local token = worker .. '/' .. nonce .. '/' .. digits(epoch)
  call('HSET', key, 's', 'held', 'o', token, 'v', worker, 't', digits(attempt), 'n', 0, 'g', '')
  return lane_reply(agent, conversation, lane, token, attempt, mail)
end

local function take_lanes()
  local lanes, held, idle, turn = {}, {}, 0, 0
  local epoch = limit > 0 and call('INCRBY', P .. 'epoch', limit) - limit or 0
  if #agents > 1 then
    turn = call('HINCRBY', facts, 'turn', 1)
  end
  -- One lane of each agent in turn; of a single agent all at once.
  local count = #agents > 1 and 1 or limit
  while #lanes < limit and idle < #agents do
    local agent = agents[turn % #agents + 1]
    turn = turn + 1
    local ready = call('LPOP', P .. 'r:' .. agent, count)
    idle = ready and 0 or idle + 1
    for _, conversation in ipairs(ready or {}) do
      local lane = lane_name(agent, conversation)
      held[#held + 1] = lane
      lanes[#lanes + 1] = hand_out(agent, conversation, lane, epoch + #held)
    end
  end
  if #held > 0 then
    call('SADD', P .. 'x:' .. worker, unpack(held))
    call('RPUSH', P .. 'y:' .. worker, unpack(held))
  end
  return lanes
end

local function lanes_again()
  local lanes = {}
  local start = worker .. '/' .. nonce .. '/'
  for _, lane in ipairs(call('LRANGE', P .. 'y:' .. worker, 0, -1)) do
    local state = call('HMGET', P .. 'l:' .. lane, 'o', 't')
    if state[1] and string.sub(state[1], 1, #start) == start then
      local agent, conversation = lane_parts(lane)
      local mail = mail_of(agent, lane, mail_max)
      lanes[#lanes + 1] = lane_reply(agent, conversation, lane, state[1], tonumber(state[2]), mail)
    end
  end
  return lanes
end

-- ms until a lane falls due or a lease that holds lanes runs out; -1 when nothing will.
local function wait_ms()
  local at
  for _, agent in ipairs(agents) do
    local due = call('ZRANGE', P .. 'd:' .. agent, 0, 0, 'WITHSCORES')
    if due[2] and (not at or tonumber(due[2]) < at) then at = tonumber(due[2]) end
  end
  local leases = call('ZRANGE', P .. 'w', 0, LEASES_SEEN, 'WITHSCORES')
  for i = 1, #leases, 2 do
    if leases[i] ~= worker and call('EXISTS', P .. 'x:' .. leases[i]) == 1 then
      local ends = tonumber(leases[i + 1]) + 1
      if not at or ends < at then at = ends end
      break
    end
  end
  return at and math.max(0, at - now) or -1
end

call('ZADD', P .. 'w', digits(now + lease), worker)
end_expired()
local more = false
for _, agent in ipairs(agents) do
  wake_due(agent)
  more = sort_mail(agent) or more
end
local lanes
if call('HGET', facts, 'nonce') == nonce then
  lanes = lanes_again()
else
  call('DEL', P .. 'y:' .. worker)
  call('HSET', facts, 'nonce', nonce, 'agents', table.concat(agents, '\n'))
  lanes = take_lanes()
end
return {more and 1 or 0, wait_ms(), lanes}
