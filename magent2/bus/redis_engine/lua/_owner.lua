-- The owner of a lane: its token, and nothing else, is compared.
local function take_owner()
  local owner = {agent = take(), conversation = take(), worker = take(), token = take()}
  owner.lane = lane_name(owner.agent, owner.conversation)
  owner.key = P .. 'l:' .. owner.lane
  return owner
end

local function take_mail()
  local members = {}
  for i = 1, take_number() do
    members[i] = take()
  end
  return members
end

local function fenced(owner)
  return {'Fenced', owner.agent, owner.conversation}
end

-- Whether this token may finish the lane; if not, the reply: what it was told the first time, or `Fenced`.
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

-- The lane has no owner and no state from here on; the caller says what becomes of it.
local function finish(owner, answer, attempt)
  call('HSET', owner.key, 's', '', 'o', '', 'v', '', 'n', 0, 'g', '', 'f', owner.token, 'y', answer, 't', attempt)
  call('SREM', P .. 'x:' .. owner.worker, owner.lane)
end
