-- A blob: hash `b` with d = data, a = when it was put, r = how many records name it.
-- `blobs` lists all by age, `loose` those that no record names. `B` of a topic: seq -> the blobs of that record.
local function keep_blob(name, at, data)
  local key = P .. 'b:' .. name
  call('HSET', key, 'd', data, 'a', at)
  call('HSETNX', key, 'r', 0)
  call('ZADD', P .. 'blobs', at, name)
  if tonumber(call('HGET', key, 'r')) <= 0 then
    call('ZADD', P .. 'loose', at, name)
  end
end

local function hold_blobs(topic, seq, names)
  call('HSET', P .. 'B:' .. topic, seq, names)
  for name in string.gmatch(names, '[^,]+') do
    if call('HINCRBY', P .. 'b:' .. name, 'r', 1) == 1 then
      call('ZREM', P .. 'loose', name)
    end
  end
end

local function free_blobs(names)
  for name in string.gmatch(names, '[^,]+') do
    local key = P .. 'b:' .. name
    if call('EXISTS', key) == 1 and call('HINCRBY', key, 'r', -1) <= 0 then
      call('ZADD', P .. 'loose', call('HGET', key, 'a'), name)
    end
  end
end

-- Of these, the ones that no record names any more.
local function drop_unnamed(names)
  for name in string.gmatch(names, '[^,]+') do
    if tonumber(call('HGET', P .. 'b:' .. name, 'r') or 1) <= 0 then
      call('UNLINK', P .. 'b:' .. name)
      call('ZREM', P .. 'loose', name)
      call('ZREM', P .. 'blobs', name)
    end
  end
end

local function free_record_blobs(topic, seq)
  local names = call('HGET', P .. 'B:' .. topic, seq)
  if names then
    call('HDEL', P .. 'B:' .. topic, seq)
    free_blobs(names)
  end
end
