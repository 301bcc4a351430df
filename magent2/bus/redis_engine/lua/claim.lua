-- Claiming lanes: one call ends expired workers, sorts new mail into lanes and hands out ready lanes.
--
-- A claim is a table: worker, nonce, lease (ms), limit (lanes), mail_max (records per lane), now (log clock), share (of
-- the slots that one principal may use), slots (principal -> slots that it uses), agents.

-- The leases that end first: worker, deadline, worker, deadline, …
local function next_leases()
  return call('ZRANGE', prefix .. 'w', 0, LEASES_SEEN - 1, 'WITHSCORES')
end

-- End workers whose lease has expired. Returns the next leases.
local function end_expired_workers(now)
  local leases = next_leases()
  if tonumber(leases[2]) >= now then
    return leases
  end
  for i = 1, #leases, 2 do
    if tonumber(leases[i + 1]) < now then
      end_worker(leases[i])
    end
  end
  return next_leases()
end

-- Whether one of these agents has lanes that wait for a time, or ready lanes of schema 2. Most have neither.
local function have_lanes_to_wake(agents)
  local keys = {}
  for i, agent in ipairs(agents) do
    keys[2 * i - 1], keys[2 * i] = prefix .. 'd:' .. agent, prefix .. 'r:' .. agent
  end
  return call('EXISTS', unpack(keys)) > 0
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

-- Put mail into its lane. `is_first`: the lane had none. A lane that becomes ready at the end of the queue is only added
-- to `fresh`, the lanes of each principal: the caller pushes those of one principal with one command. Control mail wakes
-- a sleeping lane and puts it at the front.
local function add_mail(agent, conversation, member, is_first, is_control, fresh)
  local lane = lane_name(agent, conversation)
  call('ZADD', prefix .. 'm:' .. lane, mail_score(member), member)
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

-- Put the mail among these entries of an inbox into its lanes, and into the index of the agent. Mail of a conversation whose
-- deletion has begun is left out: `erase_copies` is about to erase it, and its lane would stay without content.
local function sort_page(agent, kind, entries, fresh)
  local is_control, erasing = kind == 'control', prefix .. 'erasing'
  local keys, mail = {erasing}, {}
  for _, entry in ipairs(entries) do
    local conversation = mail_conversation(entry)
    if conversation then
      keys[#keys + 1] = prefix .. 'm:' .. lane_name(agent, conversation)
      mail[#mail + 1] = {entry_seq(entry), conversation}
    end
  end
  if #mail == 0 then
    return
  end
  -- Mostly no lane has mail and no conversation is being deleted: one command tells both.
  local all_are_empty = call('EXISTS', unpack(keys)) == 0
  local some_are_erased = not all_are_empty and call('EXISTS', erasing) == 1
  local has_mail, sorted = {}, {}
  for i, one in ipairs(mail) do
    local key, seq, conversation = keys[i + 1], one[1], one[2]
    if not (some_are_erased and call('SISMEMBER', erasing, conversation) == 1) then
      local is_first = not has_mail[key] and (all_are_empty or call('EXISTS', key) == 0)
      has_mail[key] = true
      add_mail(agent, conversation, (is_control and 'c' or 'm') .. seq, is_first, is_control, fresh)
      sorted[#sorted + 1] = seq
      sorted[#sorted + 1] = conversation
    end
  end
  if #sorted > 0 then
    call('ZADD', prefix .. (is_control and 'uc:' or 'u:') .. agent, 'NX', unpack(sorted))
  end
end

-- Sort new records of one inbox into lanes, at most INTAKE_MAX, so that one call stays short. `entries` are its first
-- page. Returns the seq of the last record that is sorted, and whether more may follow. Pages are small because entries
-- come with their payloads.
local function sort_inbox(agent, kind, entries)
  local left, fresh, cursor = INTAKE_MAX, {}, nil
  while #entries > 0 do
    sort_page(agent, kind, entries, fresh)
    cursor, left = entry_seq(entries[#entries]), left - #entries
    if #entries < SORT_PAGE or left <= 0 then break end
    local stream = prefix .. 't:' .. kind .. ':' .. agent
    entries = call('XRANGE', stream, '(0-' .. cursor, '+', 'COUNT', math.min(left, SORT_PAGE))
  end
  for _, principal in ipairs(fresh) do
    enqueue(agent, principal, fresh[principal], false)
  end
  return cursor, left <= 0
end

-- Sort the new mail of an agent. Control mail first: a stop must be in its lane before the message that it stops is handed
-- out. Returns whether more may follow.
local function sort_mail(agent)
  local inboxes, more, now_sorted = prefix .. 'q:' .. agent, false, {}
  local control, chat = prefix .. 't:control:' .. agent, prefix .. 't:chat:' .. agent
  local sorted = call('HMGET', inboxes, 'control', 'chat')
  local news = call(
    'XREAD', 'COUNT', SORT_PAGE, 'STREAMS', control, chat, '0-' .. (sorted[1] or 0), '0-' .. (sorted[2] or 0)
  )
  for _, stream in ipairs(news or {}) do -- in the order of the command
    local kind = stream[1] == control and 'control' or 'chat'
    local cursor, left_some = sort_inbox(agent, kind, stream[2])
    now_sorted[#now_sorted + 1] = kind
    now_sorted[#now_sorted + 1] = cursor
    more = more or left_some
  end
  if news then
    call('HSET', inboxes, unpack(now_sorted))
  end
  if news and not sorted[1] and not sorted[2] then
    call('SADD', prefix .. 'agents', agent)
  end
  return more
end

-- --- handing out

-- A lane that a claim hands out is a table: agent, conversation, name, principal, token (of its owner), attempt.

-- Make the worker the owner of a lane.
local function hand_out(claim, lane, number)
  local key = prefix .. 'l:' .. lane.name
  local before = call('HMGET', key, 't', 'n')
  if before[1] then
    call('PERSIST', key)
  end
  lane.attempt = (before[1] or 0) + 1
  lane.token = claim.worker .. '/' .. claim.nonce .. '/' .. digits(number)
  local counter = before[2] and {'n', '0', 'g', ''} or NONE -- of the owner before
  call('HSET', key, 's', 'held', 'o', lane.token, 'v', claim.worker, 't', digits(lane.attempt), unpack(counter))
end

local function lane_replies(claim, lanes)
  local replies, histories = {}, {}
  for i, lane in ipairs(lanes) do
    histories[i] = 'history:' .. lane.conversation
  end
  local mail, last = mail_replies(lanes, claim.mail_max), last_seqs(histories)
  for i, lane in ipairs(lanes) do
    local pending_count = #mail[i] < claim.mail_max and #mail[i] or call('ZCARD', prefix .. 'm:' .. lane.name)
    replies[i] = {
      lane.agent, lane.conversation, lane.token, lane.attempt, pending_count, mail[i], lane.principal, last[i],
    }
  end
  return replies
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
-- of the claim. Returns whether the agent may have more.
local function take_turns(claim, agent, count, free, passed, take_lane)
  local turns = prefix .. 'a:' .. agent
  local principals = call('LPOP', turns, count)
  if not principals then
    return false
  end
  local each = #principals == 1 and count or 1
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
    elseif #ready == room and call('EXISTS', queue_key(agent, principal)) == 1 then
      again[#again + 1] = principal
    end
  end
  if #again > 0 then
    call('RPUSH', turns, unpack(again))
  end
  return #again > 0 or #principals == count
end

-- Take ready lanes, one of each agent in turn, so that a busy agent does not starve the others. `turn` continues where
-- the worker's last claim ended. With a single agent all lanes are taken at once. Returns the lanes, and whether some
-- were left because of their principals' share.
local function take_ready_lanes(claim, facts)
  local found, held, passed, over_share, turn = {}, {}, {}, false, 0
  local agents, limit, left = claim.agents, claim.limit, #claim.agents
  local number = limit > 0 and call('INCRBY', prefix .. 'epoch', limit) - limit or 0
  if #agents > 1 then
    turn = call('HINCRBY', facts, 'turn', 1)
  end

  local function take_lane(agent, conversation, principal)
    local lane = {agent = agent, conversation = conversation, principal = principal}
    lane.name = lane_name(agent, conversation)
    hand_out(claim, lane, number + #held + 1)
    found[#found + 1], held[#held + 1] = lane, lane.name
    claim.slots[principal] = (claim.slots[principal] or 0) + 1
  end

  for _, agent in ipairs(agents) do
    passed[agent] = {}
  end
  local is_empty = {} -- agents without any more lanes; `left` are the others
  while #found < limit and left > 0 do
    local agent, free = agents[turn % #agents + 1], limit - #found
    turn = turn + 1
    local count = #agents > 1 and 1 or free
    if not is_empty[agent] and not take_turns(claim, agent, count, free, passed[agent], take_lane) then
      is_empty[agent] = true
      left = left - 1
    end
  end
  for agent, principals in pairs(passed) do
    for i = #principals, 1, -1 do -- they keep their turns
      call('LPUSH', prefix .. 'a:' .. agent, principals[i])
      over_share = true
    end
  end
  if #held > 0 then
    call('SADD', prefix .. 'x:' .. claim.worker, unpack(held))
  end
  return found, over_share
end

-- The lanes of a claim that is repeated because its reply was lost, as far as the worker still owns them.
local function lanes_of_last_claim(claim)
  local found = {}
  local start = claim.worker .. '/' .. claim.nonce .. '/'
  for _, name in ipairs(call('SMEMBERS', prefix .. 'x:' .. claim.worker)) do
    local state = call('HMGET', prefix .. 'l:' .. name, 'o', 't')
    if state[1] and string.sub(state[1], 1, #start) == start then
      local agent, conversation = lane_parts(name)
      found[#found + 1] = {
        agent = agent, conversation = conversation, name = name, principal = principal_of(conversation),
        token = state[1], attempt = tonumber(state[2]), number = tonumber(string.sub(state[1], #start + 1)),
      }
    end
  end
  table.sort(found, function(a, b) return a.number < b.number end)
  return found
end

-- ms until a lane falls due or a lease with lanes expires; -1 when neither will happen. `waiting`: lanes may fall due.
local function wait_ms(claim, waiting, leases)
  local at
  for _, agent in ipairs(waiting and claim.agents or {}) do
    local due = call('ZRANGE', prefix .. 'd:' .. agent, 0, 0, 'WITHSCORES')
    if due[2] and (not at or tonumber(due[2]) < at) then at = tonumber(due[2]) end
  end
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
  local leases, waiting, more = end_expired_workers(request.now), have_lanes_to_wake(request.agents), false
  for _, agent in ipairs(request.agents) do
    if waiting then
      wake_due_lanes(agent, request.now)
      more = adopt_ready_lanes(agent) or more
    end
    more = sort_mail(agent) or more
  end
  local found, over_share
  if call('HGET', facts, 'nonce') == request.nonce then
    found = lanes_of_last_claim(request)
  else
    call('HSET', facts, 'nonce', request.nonce, 'agents', table.concat(request.agents, '\n'))
    found, over_share = take_ready_lanes(request, facts)
  end
  local wait = wait_ms(request, waiting, leases)
  return {more and 1 or 0, wait, lane_replies(request, found), digits(request.now), over_share and 1 or 0}
end

register('claim', claim)
