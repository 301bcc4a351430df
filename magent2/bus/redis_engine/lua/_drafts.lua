-- Drafts: `g` name -> first piece, while open; `f` 'first closing name' by when it was closed.
local function index_draft(topic, seq, at, mark, name)
  if mark == 'd' then
    call('HSETNX', P .. 'g:' .. topic, name, seq)
  elseif mark == 'c' then
    local first = call('HGET', P .. 'g:' .. topic, name)
    if first then
      call('HDEL', P .. 'g:' .. topic, name)
      call('ZADD', P .. 'f:' .. topic, at, first .. ' ' .. seq .. ' ' .. name)
    end
  end
end

local function index_more(topic, seq, at, more)
  local _, blobs, mark, name = more_parts(more)
  index_draft(topic, seq, at, mark, name)
  if blobs ~= '' then
    hold_blobs(topic, seq, blobs)
  end
end
