-- Every script: ARGV[1] is the key prefix, the rest its own arguments. Keys are put together here (single primary).
local call = redis.call
local P = ARGV[1] .. ':'
local at_argument = 1

local function take()
  at_argument = at_argument + 1
  return ARGV[at_argument]
end

local function take_number()
  return tonumber(take())
end

-- Never `tostring`: it writes large numbers in scientific notation.
local function digits(number)
  return string.format('%.0f', number)
end

-- As text at once: making a number of it and back takes longer.
local function now_text()
  local time = call('TIME')
  return time[1] .. string.format('%03d', time[2] / 1000)
end

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
