local count = take_number()
local topics = {}
for i = 1, count do
  topics[i] = take()
end
local conversation = take()
local freed = {} -- lists of blobs that records named which are gone now

local function free_all_blobs(topic)
  local held = call('HGETALL', P .. 'B:' .. topic)
  for i = 2, #held, 2 do
    free_blobs(held[i])
    freed[#freed + 1] = held[i]
  end
end

local function entomb(topic)
  if is_deleted(topic) then
    return
  end
  local last = digits(last_seq(topic))
  local active = call('ZSCORE', P .. 'k:' .. kind_of(topic), topic) or now_text()
  unlist(topic)
  free_all_blobs(topic)
  for _, part in ipairs({'t:', 'h:', 'i:', 'j:', 'z:', 'g:', 'f:', 'B:'}) do
    call('UNLINK', P .. part .. topic)
  end
  call('SREM', P .. 'stale', topic)
  call('HSET', P .. 's:' .. topic, 'x', 1, 'f', last, 'g', last, 'a', active)
  call('SADD', P .. 'kinds', ':deleted')
  call('ZADD', P .. 'k::deleted', active, topic)
  notify(topic, '')
end

local function forget_copy(topic, seq)
  forget_body(topic, seq)
  freed[#freed + 1] = call('HGET', P .. 'B:' .. topic, seq) or nil
  erase(topic, seq)
end

-- Copies are 'seq topic', or '@ topic' for an inbox whose mail went before; every inbox among them may have a lane.
local function forget_conversation()
  local copies, agents = P .. 'c:' .. conversation, {[conversation] = true}
  for _, member in ipairs(call('SMEMBERS', copies)) do
    local seq, topic = string.match(member, '^(%S+) (.*)$')
    local kind, name = string.match(topic, '^([^:]*):(.*)$')
    if kind == 'chat' or kind == 'control' then
      agents[name] = true
    end
    if seq ~= '@' then
      forget_copy(topic, seq)
    end
  end
  for agent in pairs(agents) do
    drop_lane(agent, conversation)
  end
  call('DEL', copies)
end

for _, topic in ipairs(topics) do
  entomb(topic)
end
if conversation ~= '' then
  forget_conversation()
  for _, names in ipairs(freed) do
    drop_unnamed(names)
  end
end
return 1
