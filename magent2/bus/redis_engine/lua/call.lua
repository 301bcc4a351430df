-- The state of the running function call, its arguments, and the registration of functions.
--
-- Redis runs one function at a time, from start to end. One set of these variables therefore serves all functions of the
-- library. `register` sets them at the start of every call; no other variable of the library changes after loading.
--
-- FCALL declares no keys: functions build all keys from the prefix. This is safe because the engine refuses Cluster, and
-- because the server checks the caller's ACL rules for every command that a function runs.
local call -- redis.call; the server offers it while a function runs, but not while a library is loaded
local prefix -- the key prefix of the log, with a colon at the end
local arguments -- all arguments of the call; the first one is the key prefix
local position -- index of the argument that was taken last

local function take()
  position = position + 1
  return arguments[position]
end

local function take_number()
  return tonumber(take())
end

-- Take a list: its length, then its items.
local function take_list()
  local items = {}
  for i = 1, take_number() do
    items[i] = take()
  end
  return items
end

-- A whole number as text. `tostring` would write large numbers in scientific notation.
local function digits(number)
  return string.format('%.0f', number)
end

-- The server's clock in ms, as text: converting it to a number and back takes longer.
local function now_text()
  local time = call('TIME')
  return time[1] .. string.format('%03d', time[2] / 1000)
end

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Flags: 'no-writes' for functions that only read: they also run on a replica and on a full server.
-- 'allow-oom' for functions that free memory: they must run on a full server, which refuses all other writing functions
-- before they start.
local function register(name, callback, ...)
  redis.register_function{
    function_name = LIBRARY .. '_' .. name,
    flags = {...},
    callback = function(_, call_arguments)
      call, arguments, position = redis.call, call_arguments, 1
      prefix = arguments[1] .. ':'
      return callback()
    end,
  }
end
