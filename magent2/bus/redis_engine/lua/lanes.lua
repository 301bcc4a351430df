-- Lanes, their owners and their workers, except for claiming (claim.lua).
--
-- A lane is an agent and a conversation. Sorted set `m`: its mail in order; hash `l`: its state, with
-- s = held, later or parked (empty: ready when the lane has mail, and then in `e` exactly once; idle when it has none),
-- o = owner token, v = the owner's worker, t = attempt, n = the owner's append counter, g = answer of that append,
-- f = token of the owner that finished last, y = the answer that it got.
-- Of an agent: sorted set `d` due times (log clock), `u` and `uc` lanes by their oldest chat and control mail,
-- hash `q` how far its inboxes are sorted into lanes. Counter `epoch` numbers owner tokens.
-- Of an agent and a principal: list `e` ready lanes. List `a` of an agent: the principals that have ready lanes, each
-- once, in the order in which claims serve them. (Until schema 2 an agent had one list `r` of ready lanes.)
-- Of a worker: sorted set `w` leases by deadline (log clock), hash `v` facts, set `x` lanes held. (Older releases also
-- kept a list `y` of the lanes of its last claim.)

-- Mail is a member 'c' or 'm' (control or chat) followed by the seq. Control mail sorts before all chat mail.
local CONTROL_OFFSET = 9007199254740992 -- 2^53: scores of control mail are negative
local CONTROL_MARK = 99 -- 'c'

-- The agent's name may contain colons, so the lane's name begins with its length.
local function lane_name(agent, conversation)
  return #agent .. ':' .. agent .. ':' .. conversation
end

local function lane_parts(lane)
  local size, rest = string.match(lane, '^(%d+):(.*)$')
  size = tonumber(size)
  return string.sub(rest, 1, size), string.sub(rest, size + 2)
end

local function mail_score(member)
  local seq = string.sub(member, 2)
  return string.byte(member) == CONTROL_MARK and digits(seq - CONTROL_OFFSET) or seq
end

local function mail_topic(agent, member)
  return (string.byte(member) == CONTROL_MARK and 'control:' or 'chat:') .. agent
end

-- Mail of each of these lanes (agent, name) as a reply, control first: topic, seq, and the entry's fields, or the rest of
-- an erased one, or ''.
local function mail_replies(lanes, limit)
  local replies, seqs = {}, {} -- seqs by topic
  local last = digits(limit - 1)
  for i, lane in ipairs(lanes) do
    replies[i] = {}
    for number, member in ipairs(call('ZRANGE', prefix .. 'm:' .. lane.name, '0', last)) do
      local topic, seq = mail_topic(lane.agent, member), string.sub(member, 2)
      replies[i][number] = {topic, seq}
      seqs[topic] = seqs[topic] or {}
      table.insert(seqs[topic], tonumber(seq))
    end
  end
  local entries = {}
  for topic, numbers in pairs(seqs) do
    entries[topic] = read_entries(topic, numbers)
  end
  for _, mail in ipairs(replies) do
    for _, record in ipairs(mail) do
      local topic, seq = record[1], record[2]
      record[3] = entries[topic][tonumber(seq)] or erased_at(topic, seq) or ''
    end
  end
  return replies
end

-- The owner of a conversation as JSON text, as its head has it; '' if it has none.
local function principal_of(conversation)
  return call('HGET', prefix .. 'h:stream:' .. conversation, 'owner') or ''
end

local function queue_key(agent, principal)
  return prefix .. 'e:' .. lane_name(agent, principal)
end

-- Put lanes of one principal into its queue. Callers make sure that they have mail and were not ready before: a lane must
-- not be in the queue twice. Going to the front means ahead of the other lanes of this principal: a principal that has
-- had no ready lane joins at the end of the turns.
local function enqueue(agent, principal, conversations, front)
  local length = call(front and 'LPUSH' or 'RPUSH', queue_key(agent, principal), unpack(conversations))
  if length == #conversations then
    call('RPUSH', prefix .. 'a:' .. agent, principal)
  end
end

local function make_ready(agent, conversation, front)
  enqueue(agent, principal_of(conversation), {conversation}, front)
end

-- Remove a lane from the queue of a principal. Returns whether it was there.
local function unqueue(agent, principal, conversation)
  local key = queue_key(agent, principal)
  if call('LREM', key, 1, conversation) == 0 then
    return false
  end
  if call('EXISTS', key) == 0 then
    call('LREM', prefix .. 'a:' .. agent, 1, principal)
  end
  return true
end

-- Remove a lane that is ready. Its principal is nearly always the owner of its conversation; all others are searched if
-- the owner was changed or removed since the lane became ready.
local function make_unready(agent, conversation)
  if unqueue(agent, principal_of(conversation), conversation) then
    return
  end
  for _, principal in ipairs(call('LRANGE', prefix .. 'a:' .. agent, 0, -1)) do
    if unqueue(agent, principal, conversation) then
      return
    end
  end
end

local function index_oldest_mail(index, conversation, lane, has_mail, low, high)
  local oldest = has_mail and call('ZRANGEBYSCORE', prefix .. 'm:' .. lane, low, high, 'LIMIT', 0, 1)[1]
  if oldest then
    call('ZADD', index, string.sub(oldest, 2), conversation)
  else
    call('ZREM', index, conversation)
  end
end

-- Update the indexes `u` and `uc` after these members were added to or removed from the mail of a lane.
local function index_mail(agent, conversation, lane, members, has_mail)
  local chat, control = false, false
  for _, member in ipairs(members) do
    if string.byte(member) == CONTROL_MARK then control = true else chat = true end
  end
  if chat then index_oldest_mail(prefix .. 'u:' .. agent, conversation, lane, has_mail, '(0', '+inf') end
  if control then index_oldest_mail(prefix .. 'uc:' .. agent, conversation, lane, has_mail, '-inf', '0') end
end

-- Returns whether the lane has mail left, or nil when there was nothing to remove.
local function remove_mail(agent, conversation, lane, members)
  if #members == 0 then
    return nil
  end
  call('ZREM', prefix .. 'm:' .. lane, unpack(members))
  local has_mail = call('EXISTS', prefix .. 'm:' .. lane) == 1
  index_mail(agent, conversation, lane, members, has_mail)
  return has_mail
end

-- A lane without mail: it is remembered for a while, so that a repeated settle gets its first answer.
local function make_idle(lane)
  call('HSET', prefix .. 'l:' .. lane, 's', '', 't', '0')
  call('PEXPIRE', prefix .. 'l:' .. lane, LANE_MEMORY_MS)
end

-- Take a lane from its owner, as after an expired lease. The attempt counts. Returns the agent.
local function take_back(lane)
  local agent, conversation = lane_parts(lane)
  call('HSET', prefix .. 'l:' .. lane, 's', '', 'o', '', 'v', '')
  if call('EXISTS', prefix .. 'm:' .. lane) == 1 then
    make_ready(agent, conversation, true)
  else
    make_idle(lane)
  end
  return agent
end

-- End a worker: its lanes return to the front of their queues, and the inboxes are notified. Returns how many it held.
local function end_worker(worker)
  local held = call('SMEMBERS', prefix .. 'x:' .. worker)
  local agents = {}
  for _, lane in ipairs(held) do
    agents[take_back(lane)] = true
  end
  call('DEL', prefix .. 'x:' .. worker, prefix .. 'v:' .. worker, prefix .. 'y:' .. worker)
  call('ZREM', prefix .. 'w', worker)
  for agent in pairs(agents) do
    notify('chat:' .. agent, '')
  end
  return #held
end

local function drop_lane(agent, conversation)
  local lane = lane_name(agent, conversation)
  local state = call('HMGET', prefix .. 'l:' .. lane, 'v', 's')
  if state[1] and state[1] ~= '' then
    call('SREM', prefix .. 'x:' .. state[1], lane)
  end
  if (state[2] or '') == '' and call('EXISTS', prefix .. 'm:' .. lane) == 1 then
    make_unready(agent, conversation)
  end
  call('DEL', prefix .. 'l:' .. lane, prefix .. 'm:' .. lane)
  call('LREM', prefix .. 'r:' .. agent, 0, conversation) -- of schema 2
  for _, index in ipairs({'d:', 'u:', 'uc:'}) do
    call('ZREM', prefix .. index .. agent, conversation)
  end
end

-- --- owners

local function take_owner()
  local agent, conversation, worker, token = take(), take(), take(), take()
  local lane = lane_name(agent, conversation)
  return {
    agent = agent, conversation = conversation, worker = worker, token = token, lane = lane, key = prefix .. 'l:' .. lane,
  }
end

local function fenced(owner)
  return {'Fenced', owner.agent, owner.conversation}
end

-- Whether this owner may finish the lane. If not, the reply: the answer of the first time, or `Fenced`.
-- Only tokens are compared: they are unique, while a worker may own the same lane several times.
local function check_finish(owner)
  local state = call('HMGET', owner.key, 'o', 'f', 'y')
  if state[1] == owner.token then
    return nil
  end
  if state[2] == owner.token then
    return {'repeat', state[3] or ''}
  end
  return fenced(owner)
end

-- Leave the lane without owner and state; the caller sets the next state.
local function finish(owner, answer, attempt)
  call('HSET', owner.key, 's', '', 'o', '', 'v', '', 'f', owner.token, 'y', answer, 't', attempt)
  call('SREM', prefix .. 'x:' .. owner.worker, owner.lane)
end

-- --- functions

-- Appends of an owner are numbered 1, 2, 3 …; the counter recognises a repeated one without an id.
local function owned_append()
  local owner, counter, mail, write = take_owner(), take(), take_list(), take_write()
  local state = call('HMGET', owner.key, 'o', 'n', 'g')
  if state[1] ~= owner.token then
    return fenced(owner)
  end
  local n, seen = tonumber(counter), tonumber(state[2] or 0)
  if n <= seen then
    return {'repeat', n == seen and state[3] or ''}
  end
  if n > seen + 1 then
    return {'CounterGap', counter, digits(seen)}
  end
  local refusal = check_write(write, 1)
  if refusal then
    return refusal
  end

  local answer = write_append(write, 1)
  remove_mail(owner.agent, owner.conversation, owner.lane, mail)
  call('HSET', owner.key, 'n', counter, 'g', answer)
  return {'done', answer}
end

local function settle()
  local owner, mail, write = take_owner(), take_list(), take_write()
  local refusal = check_finish(owner) or check_write(write, 1)
  if refusal then
    return refusal
  end

  local answer = write_append(write, 1)
  local has_mail = remove_mail(owner.agent, owner.conversation, owner.lane, mail)
  finish(owner, answer, '0')
  if has_mail then
    make_ready(owner.agent, owner.conversation, false)
    notify('chat:' .. owner.agent, '')
  else
    call('PEXPIRE', owner.key, LANE_MEMORY_MS)
  end
  return {'done', answer}
end

-- The delay is a number of ms, or 'parked': until control mail arrives.
local function later()
  local owner, delay, refund, expected, write = take_owner(), take(), take_number(), take_number(), take_write()
  local refusal = check_finish(owner) or check_write(write, 1)
  if refusal then
    return refusal
  end

  local answer = write_append(write, 1)
  local attempt = tonumber(call('HGET', owner.key, 't') or 0)
  finish(owner, answer, digits(math.max(0, attempt - refund)))
  -- Control mail may have arrived while the lane was held. A lane with control mail is ready at once.
  local first = call('ZRANGE', prefix .. 'm:' .. owner.lane, 0, 0)[1]
  if first and string.byte(first) == CONTROL_MARK then
    delay = '0'
  end
  if delay == 'parked' then
    call('HSET', owner.key, 's', 'parked')
  elseif delay == '0' and first then
    make_ready(owner.agent, owner.conversation, true)
    notify('chat:' .. owner.agent, '')
  elseif delay == '0' then
    make_idle(owner.lane)
  else
    call('HSET', owner.key, 's', 'later')
    call('ZADD', prefix .. 'd:' .. owner.agent, digits(log_ms(expected) + tonumber(delay)), owner.conversation)
  end
  return {'done', answer}
end

local function pending()
  local owner, limit = take_owner(), take_number()
  if call('HGET', owner.key, 'o') ~= owner.token then
    return fenced(owner)
  end
  return {'done', mail_replies({{agent = owner.agent, name = owner.lane}}, limit)[1]}
end

local function renew()
  local worker, lease, now = take(), take_number(), log_ms(take_number())
  if not call('ZSCORE', prefix .. 'w', worker) then
    return 0
  end
  call('ZADD', prefix .. 'w', digits(now + lease), worker)
  return 1
end

local function leave()
  return end_worker(take())
end

-- Lanes of an agent that have mail: first those with control mail only, then the others by their oldest chat mail.
local function lanes()
  local agent, limit = take(), take_number()
  local found, seen = {}, {}

  local function add(conversation)
    if seen[conversation] or #found >= limit then
      return
    end
    seen[conversation] = true
    local lane = lane_name(agent, conversation)
    local state = call('HMGET', prefix .. 'l:' .. lane, 's', 't', 'v')
    local name = state[1] and state[1] ~= '' and state[1] or 'ready'
    local due = call('ZSCORE', prefix .. 'd:' .. agent, conversation)
    found[#found + 1] = {
      conversation, call('ZCARD', prefix .. 'm:' .. lane), state[2] or '0', name, state[3] or '', due or '',
    }
  end

  for _, conversation in ipairs(call('ZRANGE', prefix .. 'uc:' .. agent, 0, limit - 1)) do
    if not call('ZSCORE', prefix .. 'u:' .. agent, conversation) then
      add(conversation)
    end
  end
  for _, conversation in ipairs(call('ZRANGE', prefix .. 'u:' .. agent, 0, limit - 1)) do
    add(conversation)
  end
  return {digits(peek_log_ms()), found}
end

local function workers()
  local found = {}
  local leases = call('ZRANGE', prefix .. 'w', 0, -1, 'WITHSCORES')
  for i = 1, #leases, 2 do
    local worker = leases[i]
    local agents = call('HGET', prefix .. 'v:' .. worker, 'agents') or ''
    found[#found + 1] = {worker, leases[i + 1], agents, call('SCARD', prefix .. 'x:' .. worker)}
  end
  return {digits(peek_log_ms()), found}
end

register('owned_append', owned_append)
register('settle', settle)
register('later', later)
register('pending', pending, 'no-writes')
register('renew', renew)
register('leave', leave)
register('lanes', lanes, 'no-writes')
register('workers', workers, 'no-writes')
