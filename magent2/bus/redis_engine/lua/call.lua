-- The state of the running function call, its arguments, and the registration of functions.
--
-- Redis runs one function at a time, from start to end. One set of these variables therefore serves all functions of the
-- library. `register` sets them at the start of every call.
--
-- FCALL declares no keys: functions build all keys from the prefix. This is safe because the engine refuses Cluster, and
-- because the server checks the caller's ACL rules for every command that a function runs.
local prefix -- the key prefix of the log, with a colon at the end
local arguments -- all arguments of the call; the first one is the key prefix, the second the epoch that the caller knows
local position -- index of the argument that was taken last
local UNPACK_MAX = 1000 -- values that one command gets with `unpack`; Lua has room for some thousands

-- Globals of Lua as local variables, which are faster: every use of a global goes through two tables, which made claims
-- and long appends 15% slower. Redis 7.0 offers them only while a function runs, so the first call sets them.
local function globals()
  return redis.call, string, table, math, ipairs, pairs, tonumber, unpack
end
local call, string, table, math, ipairs, pairs, tonumber, unpack

local function take()
  position = position + 1
  return arguments[position]
end

local function take_number()
  return tonumber(take())
end

local NONE = {} -- an empty list; never changed

-- Take a list: its length, then its items.
local function take_list()
  local count = take_number()
  local items = count == 0 and NONE or {}
  for i = 1, count do
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

-- The log clock in ms: it measures delays and leases (decision 28). It is the server's clock plus an offset that changes
-- when the server's clock is set, so it runs on and never goes back. Hash `clock`: o = the offset, l = the last time.
-- `expected` is the time by the monotonic clock of the caller, or nil: it tells a clock that was set forward from time
-- in which nothing happened. It may be late by the time that a command waited, so small differences do not count.
local function stored_log_ms()
  local clock = call('HMGET', prefix .. 'clock', 'o', 'l')
  local server = now_ms()
  return server + (clock[1] or 0), tonumber(clock[2] or 0), server
end

local function log_ms(expected)
  local now, last, server = stored_log_ms()
  if expected and math.abs(now - expected) > CLOCK_JUMP_MS then
    now = expected
  end
  now = math.max(now, last)
  call('HSET', prefix .. 'clock', 'o', digits(now - server), 'l', digits(now))
  return now
end

-- The log clock for functions that do not write.
local function peek_log_ms()
  local now, last = stored_log_ms()
  return math.max(now, last)
end

-- The epoch of the log (decision 54) is the text 'number:base:mark' in the field `epoch` of the hash `meta`. Topics number
-- their records after `base` from that epoch on; it is 0 in epoch 1.
local epoch_text, epoch_base = '', 0 -- of the last call

-- Whether the caller knows the epoch of the log. One read per call: a copy in a variable would be wrong on a server that
-- was a replica meanwhile.
local function epoch_is_known()
  local stored = call('HGET', prefix .. 'meta', 'epoch')
  if not stored or stored ~= arguments[2] then
    return false
  end
  if stored ~= epoch_text then
    epoch_text, epoch_base = stored, tonumber(string.match(stored, '^%d+:(%d+):'))
  end
  return true
end

-- Flags: 'no-writes' for functions that only read: they also run on a replica and on a full server.
-- 'allow-oom' for functions that free memory: they must run on a full server, which refuses all other writing functions
-- before they start. Functions that write refuse callers that do not know the epoch, except for `epoch` itself.
local function register(name, callback, ...)
  local checked = name ~= 'epoch' and (...) ~= 'no-writes'
  redis.register_function{
    function_name = LIBRARY .. '_' .. name,
    flags = {...},
    callback = function(_, call_arguments)
      if not call then
        call, string, table, math, ipairs, pairs, tonumber, unpack = globals()
      end
      arguments, position = call_arguments, 2
      prefix = arguments[1] .. ':'
      if checked and not epoch_is_known() then
        return redis.error_reply('STALEEPOCH the log has another epoch than the caller knows')
      end
      return callback()
    end,
  }
end
