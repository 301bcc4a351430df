-- Claiming lanes: one call ends expired workers, sorts new mail into lanes and hands out ready lanes.
--
-- A claim is a table: worker, nonce, lease (ms), limit (lanes), mail_max (records per lane), now (log clock), share (of
-- the slots that one principal may use), slots (principal -> slots that it uses), agents.

local function end_expired_workers(now)
  local expired = call('ZRANGEBYSCORE', prefix .. 'w', '-inf', '(' .. digits(now), 'LIMIT', 0, EXPIRED_MAX)
  for _, worker in ipairs(expired) do
    end_worker(worker)
  end
end

-- Make the lanes ready whose delay is over.
local function wake_due_lanes(agent, now)
  local key = prefix .. 'd:' .. agent
  for _, conversation in ipairs(call('ZRANGEBYSCORE', key, '-inf', digits(now), 'LIMIT', 0, INTAKE_MAX)) do
    call('ZREM', key, conversation)
    local lane = lane_name(agent, conversation)
    if call('EXISTS', prefix .. 'm:' .. lane) == 1 then
      call('HSET', prefix .. 'l:' .. lane, 's', '')
      make_ready(agent, conversation, false)
    else
      make_idle(lane)
    end
  end
end

-- Move a page of the ready lanes of schema 2 into the queues of their principals. A worker of an older release that still
-- runs leaves lanes there too. Returns whether there may be more.
local function adopt_ready_lanes(agent)
  local found = call('LPOP', prefix .. 'r:' .. agent, INTAKE_MAX) or {}
  for _, conversation in ipairs(found) do
    local lane = lane_name(agent, conversation)
    local state = call('HGET', prefix .. 'l:' .. lane, 's') or ''
    if state == '' and call('EXISTS', prefix .. 'm:' .. lane) == 1 then
      make_ready(agent, conversation, false)
    end
  end
  return #found == INTAKE_MAX
end

-- --- inboxes → lanes

-- Put mail into its lane. A lane that becomes ready at the end of the queue is only added to `fresh`, the lanes of each
-- principal: the caller pushes those of one principal with one command. Control mail wakes a sleeping lane and puts it
-- at the front.
local function add_mail(agent, conversation, member, is_control, fresh)
  local lane = lane_name(agent, conversation)
  local mail = prefix .. 'm:' .. lane
  call('ZADD', mail, mail_score(member), member)
  call('ZADD', prefix .. (is_control and 'uc:' or 'u:') .. agent, 'NX', string.sub(member, 2), conversation)
  local is_first = call('ZCARD', mail) == 1
  local state = (is_first or is_control) and call('HGET', prefix .. 'l:' .. lane, 's') or ''
  if is_first and state == '' and not is_control then
    local principal = principal_of(conversation)
    local lanes = fresh[principal]
    if not lanes then
      lanes = {}
      fresh[principal] = lanes
      fresh[#fresh + 1] = principal
    end
    lanes[#lanes + 1] = conversation
  elseif is_first and state == '' then
    make_ready(agent, conversation, true)
  elseif is_control and (state == 'later' or state == 'parked') then
    call('ZREM', prefix .. 'd:' .. agent, conversation)
    call('HSET', prefix .. 'l:' .. lane, 's', '')
    make_ready(agent, conversation, true)
  end
end

-- The conversation that an entry is mail for, or nil. An entry of another program is mail that names no conversation.
local function mail_conversation(entry)
  for i = 1, #entry[2] - 1, 2 do
    if entry[2][i] == 'l' then
      local lane = entry[2][i + 1]
      local mark = string.byte(lane)
      return (mark == MARK_MAIL_AND_COPY or mark == MARK_MAIL) and string.sub(lane, 2) or nil
    end
  end
  return ''
end

-- Sort new records of one inbox into lanes, at most INTAKE_MAX, so that one call stays short. Returns whether more may
-- follow. Pages are small because entries come with their payloads.
local function sort_inbox(agent, kind, sorted)
  local topic, left, cursor = kind .. ':' .. agent, INTAKE_MAX, sorted
  local more, fresh = false, {}
  while left > 0 do
    local entries = call('XRANGE', prefix .. 't:' .. topic, '(0-' .. cursor, '+', 'COUNT', math.min(left, SORT_PAGE))
    for _, entry in ipairs(entries) do
      cursor = entry_seq(entry)
      local conversation = mail_conversation(entry)
      if conversation then
        add_mail(agent, conversation, (kind == 'control' and 'c' or 'm') .. cursor, kind == 'control', fresh)
      end
    end
    left = left - #entries
    more = left <= 0
    if #entries < SORT_PAGE then break end
  end
  for _, principal in ipairs(fresh) do
    enqueue(agent, principal, fresh[principal], false)
  end
  if cursor ~= sorted then
    call('HSET', prefix .. 'q:' .. agent, kind, cursor)
    call('SADD', prefix .. 'agents', agent)
  end
  return more
end

-- Control mail first: a stop must be in its lane before the message that it stops is handed out.
local function sort_mail(agent)
  local sorted = call('HMGET', prefix .. 'q:' .. agent, 'control', 'chat')
  local control = sort_inbox(agent, 'control', sorted[1] or '0')
  local chat = sort_inbox(agent, 'chat', sorted[2] or '0')
  return control or chat
end

-- --- handing out

local function lane_reply(claim, agent, conversation, lane, token, attempt, principal)
  local mail = mail_reply(agent, lane, claim.mail_max)
  local pending_count = #mail < claim.mail_max and #mail or call('ZCARD', prefix .. 'm:' .. lane)
  return {agent, conversation, token, attempt, pending_count, mail, principal, last_seq('history:' .. conversation)}
end

local function hand_out(claim, agent, conversation, lane, epoch, principal)
  local key = prefix .. 'l:' .. lane
  local before = call('HGET', key, 't')
  if before then
    call('PERSIST', key)
  end
  local attempt = (before or 0) + 1
  local token = claim.worker .. '/' .. claim.nonce .. '/' .. digits(epoch)
  call('HSET', key, 's', 'held', 'o', token, 'v', claim.worker, 't', digits(attempt), 'n', 0, 'g', '')
  return lane_reply(claim, agent, conversation, lane, token, attempt, principal)
end

-- How many of `count` lanes a principal may take while this many slots are free (see `Claim.has_room`).
local function room_for(claim, principal, count, free)
  if principal == '' then
    return count
  end
  local used, room = claim.slots[principal] or 0, 0
  while room < count and (used + room) * (1 - claim.share) < claim.share * (free - room) do
    room = room + 1
  end
  return room
end

-- Take the next lanes of an agent, at most `count`: one of each principal in turn, or several of one that is alone.
-- `take_lane` is called for each. Principals without room are added to `passed` and stay out of the turns until the end
-- of the claim. Returns whether there was a principal.
local function take_turns(claim, agent, count, free, passed, take_lane)
  local turns = prefix .. 'a:' .. agent
  local principals = call('LPOP', turns, count)
  if not principals then
    return false
  end
  local each = 1
  if #principals == 1 and count > 1 and call('EXISTS', turns) == 0 then
    each = count
  end
  local again = {}
  for _, principal in ipairs(principals) do
    local room = room_for(claim, principal, each, free)
    local ready = room > 0 and call('LPOP', queue_key(agent, principal), room) or {}
    free = free - #ready
    for _, conversation in ipairs(ready) do
      take_lane(agent, conversation, principal)
    end
    if room == 0 then
      passed[#passed + 1] = principal
    elseif call('EXISTS', queue_key(agent, principal)) == 1 then
      again[#again + 1] = principal
    end
  end
  if #again > 0 then
    call('RPUSH', turns, unpack(again))
  end
  return true
end

-- Take ready lanes, one of each agent in turn, so that a busy agent does not starve the others. `turn` continues where
-- the worker's last claim ended. With a single agent all lanes are taken at once. Returns the lanes, and whether some
-- were left because of their principals' share.
local function take_ready_lanes(claim, facts)
  local found, held, passed, over_share, idle, turn = {}, {}, {}, false, 0, 0
  local agents, limit = claim.agents, claim.limit
  local epoch = limit > 0 and call('INCRBY', prefix .. 'epoch', limit) - limit or 0
  if #agents > 1 then
    turn = call('HINCRBY', facts, 'turn', 1)
  end

  local function take_lane(agent, conversation, principal)
    local lane = lane_name(agent, conversation)
    held[#held + 1] = lane
    found[#found + 1] = hand_out(claim, agent, conversation, lane, epoch + #held, principal)
    claim.slots[principal] = (claim.slots[principal] or 0) + 1
  end

  for _, agent in ipairs(agents) do
    passed[agent] = {}
  end
  while #found < limit and idle < #agents do
    local agent, free = agents[turn % #agents + 1], limit - #found
    turn = turn + 1
    idle = take_turns(claim, agent, #agents > 1 and 1 or free, free, passed[agent], take_lane) and 0 or idle + 1
  end
  for agent, principals in pairs(passed) do
    for i = #principals, 1, -1 do -- they keep their turns
      call('LPUSH', prefix .. 'a:' .. agent, principals[i])
      over_share = true
    end
  end
  if #held > 0 then
    call('SADD', prefix .. 'x:' .. claim.worker, unpack(held))
    call('RPUSH', prefix .. 'y:' .. claim.worker, unpack(held))
  end
  return found, over_share
end

-- The lanes of a claim that is repeated because its reply was lost, as far as the worker still owns them.
local function lanes_of_last_claim(claim)
  local found = {}
  local start = claim.worker .. '/' .. claim.nonce .. '/'
  for _, lane in ipairs(call('LRANGE', prefix .. 'y:' .. claim.worker, 0, -1)) do
    local state = call('HMGET', prefix .. 'l:' .. lane, 'o', 't')
    if state[1] and string.sub(state[1], 1, #start) == start then
      local agent, conversation = lane_parts(lane)
      local principal = principal_of(conversation)
      found[#found + 1] = lane_reply(claim, agent, conversation, lane, state[1], tonumber(state[2]), principal)
    end
  end
  return found
end

-- ms until a lane falls due or a lease with lanes expires; -1 when neither will happen.
local function wait_ms(claim)
  local at
  for _, agent in ipairs(claim.agents) do
    local due = call('ZRANGE', prefix .. 'd:' .. agent, 0, 0, 'WITHSCORES')
    if due[2] and (not at or tonumber(due[2]) < at) then at = tonumber(due[2]) end
  end
  local leases = call('ZRANGE', prefix .. 'w', 0, LEASES_SEEN, 'WITHSCORES')
  for i = 1, #leases, 2 do
    if leases[i] ~= claim.worker and call('EXISTS', prefix .. 'x:' .. leases[i]) == 1 then
      local ends = tonumber(leases[i + 1]) + 1
      if not at or ends < at then at = ends end
      break
    end
  end
  return at and math.max(0, at - claim.now) or -1
end

-- Take a number for each of some names: their count, then pairs of a name and a number.
local function take_numbers()
  local numbers = {}
  for _ = 1, take_number() do
    local name = take()
    numbers[name] = take_number()
  end
  return numbers
end

local function claim()
  local request = {
    worker = take(), nonce = take(), lease = take_number(), limit = take_number(), mail_max = take_number(),
    now = log_ms(take_number()), share = take_number(), slots = take_numbers(), agents = take_list(),
  }
  local facts = prefix .. 'v:' .. request.worker
  -- The worker's own lease is extended first: it must not end itself below.
  call('ZADD', prefix .. 'w', digits(request.now + request.lease), request.worker)
  end_expired_workers(request.now)
  local more = false
  for _, agent in ipairs(request.agents) do
    wake_due_lanes(agent, request.now)
    more = adopt_ready_lanes(agent) or more
    more = sort_mail(agent) or more
  end
  local found, over_share
  if call('HGET', facts, 'nonce') == request.nonce then
    found = lanes_of_last_claim(request)
  else
    call('DEL', prefix .. 'y:' .. request.worker)
    call('HSET', facts, 'nonce', request.nonce, 'agents', table.concat(request.agents, '\n'))
    found, over_share = take_ready_lanes(request, facts)
  end
  return {more and 1 or 0, wait_ms(request), found, digits(request.now), over_share and 1 or 0}
end

register('claim', claim)
