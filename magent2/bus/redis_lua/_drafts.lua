-- Drafts: `g` name -> first piece, while open; `f` 'first closing name' by when it was closed.
local function note_draft(topic, seq, draft)
  call('HSETNX', P .. 'g:' .. topic, draft, seq)
end

local function close_draft(topic, seq, name, at)
  local first = call('HGET', P .. 'g:' .. topic, name)
  if first then
    call('HDEL', P .. 'g:' .. topic, name)
    call('ZADD', P .. 'f:' .. topic, at, first .. ' ' .. seq .. ' ' .. name)
  end
end
