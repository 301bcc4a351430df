-- Drafts: `g` name -> first piece, while open; `f` 'first closing name' by when it was closed.
local function note_drafts(topic, seq, at, draft, closes)
  if draft ~= '' then
    call('HSETNX', P .. 'g:' .. topic, draft, seq)
  end
  local first = closes ~= '' and call('HGET', P .. 'g:' .. topic, closes)
  if first then
    call('HDEL', P .. 'g:' .. topic, closes)
    call('ZADD', P .. 'f:' .. topic, at, first .. ' ' .. seq .. ' ' .. closes)
  end
end

local function index_extras(topic, seq, at, draft, closes, blobs)
  note_drafts(topic, seq, at, draft, closes)
  if blobs ~= '' then
    hold_blobs(topic, seq, blobs)
  end
end
