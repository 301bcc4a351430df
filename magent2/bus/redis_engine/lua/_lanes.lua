-- A lane (agent, conversation): mail `m` by order, state `l`:
-- s = held, later or parked (empty: with mail ready, and then in `r` once; without mail idle),
-- o = owner token, v = its worker, t = attempt,
-- n = the owner's counter, g = answer of that append, f = token that finished last, y = its answer.
-- Of an agent: `r` ready queue, `d` due times, `u` and `uc` lanes by their oldest chat and control mail, `q` what is sorted.
-- `epoch` counts owners. Of a worker: `w` leases by deadline, `v` facts, `x` lanes held, `y` lanes of its last claim.
local CONTROL_FIRST = 9007199254740992
local CONTROL_MARK = 99 -- 'c': a member is 'c' or 'm' and the seq

local function lane_name(agent, conversation)
  return #agent .. ':' .. agent .. ':' .. conversation
end

local function lane_parts(lane)
  local size, rest = string.match(lane, '^(%d+):(.*)$')
  size = tonumber(size)
  return string.sub(rest, 1, size), string.sub(rest, size + 2)
end

local function mail_score(member)
  local seq = tonumber(string.sub(member, 2))
  return digits(string.byte(member) == CONTROL_MARK and seq - CONTROL_FIRST or seq)
end

local function mail_topic(agent, member)
  return (string.byte(member) == CONTROL_MARK and 'control:' or 'chat:') .. agent
end

-- Only a lane with mail, and only from another state: it must not be in the queue twice.
local function make_ready(agent, conversation, front)
  call(front and 'LPUSH' or 'RPUSH', P .. 'r:' .. agent, conversation)
end

-- Brings the indexes of chat and control mail up to date with what the lane has.
local function index_mail(agent, conversation, lane, chat, control, any)
  local function index(key, low, high)
    local oldest = any and call('ZRANGEBYSCORE', P .. 'm:' .. lane, low, high, 'LIMIT', 0, 1)[1]
    if oldest then
      call('ZADD', key, string.sub(oldest, 2), conversation)
    else
      call('ZREM', key, conversation)
    end
  end

  if chat then index(P .. 'u:' .. agent, '(0', '+inf') end
  if control then index(P .. 'uc:' .. agent, '-inf', '0') end
end

-- Whether the lane has mail left.
local function remove_mail(agent, conversation, lane, members)
  if #members == 0 then
    return
  end
  call('ZREM', P .. 'm:' .. lane, unpack(members))
  local any = call('EXISTS', P .. 'm:' .. lane) == 1
  local chat, control = false, false
  for _, member in ipairs(members) do
    if string.byte(member) == CONTROL_MARK then control = true else chat = true end
  end
  index_mail(agent, conversation, lane, chat, control, any)
  return any
end

local function rest(lane)
  call('HSET', P .. 'l:' .. lane, 's', '', 't', 0)
  call('PEXPIRE', P .. 'l:' .. lane, LANE_MEMORY_MS)
end

-- Takes a lane from its owner as a lease that ran out does; the attempt counts.
local function take_back(lane)
  local agent, conversation = lane_parts(lane)
  call('HSET', P .. 'l:' .. lane, 's', '', 'o', '', 'v', '')
  if call('EXISTS', P .. 'm:' .. lane) == 1 then
    make_ready(agent, conversation, true)
  else
    rest(lane)
  end
  return agent
end

-- Ends a worker; its lanes go back to the front and the inboxes concerned are told.
local function end_worker(worker)
  local held = call('SMEMBERS', P .. 'x:' .. worker)
  local agents = {}
  for _, lane in ipairs(held) do
    agents[take_back(lane)] = true
  end
  call('DEL', P .. 'x:' .. worker, P .. 'v:' .. worker, P .. 'y:' .. worker)
  call('ZREM', P .. 'w', worker)
  for agent in pairs(agents) do
    notify('chat:' .. agent, '')
  end
  return #held
end

local function drop_lane(agent, conversation)
  local lane = lane_name(agent, conversation)
  local worker = call('HGET', P .. 'l:' .. lane, 'v')
  if worker and worker ~= '' then
    call('SREM', P .. 'x:' .. worker, lane)
  end
  call('DEL', P .. 'l:' .. lane, P .. 'm:' .. lane)
  call('LREM', P .. 'r:' .. agent, 0, conversation)
  for _, index in ipairs({'d:', 'u:', 'uc:'}) do
    call('ZREM', P .. index .. agent, conversation)
  end
end
