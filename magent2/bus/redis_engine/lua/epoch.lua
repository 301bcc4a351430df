-- Epochs: what a new connection asks before it does anything else (decision 54).
--
-- Of hash `meta`: epoch = the epoch of the log (see `epoch_is_known` in call.lua), replid and run = replication id and run
-- id of the server when the log was last used, replicas = 1 once a replica or a Sentinel was seen,
-- schema = SCHEMA_WITH_EPOCHS from epoch 2 on. Set `epochs`: the epochs that the log has had, and those that it has lost.
local NO_REPLICATION_ID = '0000000000000000000000000000000000000000'

-- The facts of INFO about the server and its replication, by name; none if the user may not use INFO.
local function server_facts()
  local facts, reply = {}, redis.pcall('INFO', 'server', 'replication')
  if type(reply) == 'string' then
    for name, value in string.gmatch(reply, '([%w_]+):([^\r\n]*)') do
      facts[name] = value
    end
  end
  return facts
end

local function note_server(facts)
  if facts.master_replid then
    call('HSET', prefix .. 'meta', 'replid', facts.master_replid, 'run', facts.run_id)
  end
end

local function epoch_number(text)
  return tonumber(string.match(text, '^%d+')) or 0
end

-- The base of a new epoch: the time in µs, which no server reaches by counting records. It therefore differs also from
-- the bases of epochs that were lost. If the clock was set back, the log clock or the base before is later.
local function new_base(before)
  local time = call('TIME')
  local log_clock = tonumber(call('HGET', prefix .. 'clock', 'l') or 0)
  local base_before = tonumber(string.match(before or '', '^%d+:(%d+):') or 0)
  return math.max(time[1] * 1000000 + time[2], log_clock * 1000, base_before + 1)
end

-- End all workers, as if their leases had expired: a run may have appended what is lost, and cannot go on after it.
local function fence_all()
  for _, worker in ipairs(call('ZRANGE', prefix .. 'w', 0, -1)) do
    end_worker(worker)
  end
end

-- The record that shows the epoch to an operator.
local function record_epoch(reason, replid_before, facts)
  local at = now_text()
  local body = string.format(
    '{"epoch":%d,"previous_replication_id":"%s","reason":"%s","replication_id":"%s","second_offset":%d,"seqs_after":%s}',
    epoch_number(epoch_text), replid_before or '', reason, facts.master_replid or '',
    tonumber(facts.second_repl_offset or -1), digits(epoch_base)
  )
  local seq = add_entry(EPOCH_TOPIC, 'i', '', 'a', at, 'l', '', 'p', body)
  local new_in = index_entry(EPOCH_TOPIC, seq, '', at)
  if new_in then
    notify_kind(EPOCH_TOPIC, new_in)
  end
  notify(EPOCH_TOPIC, '')
end

local function begin_epoch(before, known, reason, replid_before, facts)
  local number = math.max(epoch_number(before or ''), epoch_number(known)) + 1
  epoch_base = new_base(before)
  epoch_text = digits(number) .. ':' .. digits(epoch_base) .. ':' .. string.sub(facts.master_replid or 'unknown', 1, 8)
  call('HSET', prefix .. 'meta', 'epoch', epoch_text, 'schema', SCHEMA_WITH_EPOCHS)
  note_server(facts)
  call('SADD', prefix .. 'epochs', epoch_text)
  if known ~= '' then
    call('SADD', prefix .. 'epochs', known) -- others that know the same lost epoch do not begin another one
  end
  fence_all()
  record_epoch(reason, replid_before, facts)
  return {epoch_text, reason}
end

-- Why the server may have lost records since the log was last used; '' if it has not. 'ask' if that depends on a setting
-- that only the caller can read: whether the server syncs every write (`safe`: 1 or 0, or '' as long as it is not known).
local function loss(replid_before, run_before, was_replicated, safe, facts)
  if not facts.master_replid or not replid_before or replid_before == facts.master_replid then
    return ''
  elseif facts.master_replid2 == replid_before then
    return 'promoted'
  elseif facts.master_replid2 ~= NO_REPLICATION_ID then
    return 'replaced'
  elseif facts.run_id == run_before then
    return '' -- a primary without replicas takes a new id after `repl-backlog-ttl`
  elseif was_replicated then
    return 'replaced' -- perhaps by a replica that was restarted as a primary
  elseif safe == '' then
    return 'ask'
  end
  return safe == '1' and '' or 'restarted'
end

-- Whether the log lacks the epoch that the caller knows, or in the same epoch a record that the caller knows.
local function has_lost(before, known, seen, seen_seq)
  if known ~= before then
    return call('SISMEMBER', prefix .. 'epochs', known) == 0
  end
  return seen ~= '' and last_seq(seen) < seen_seq
end

-- Return the epoch of the log, and why this call has begun it, or ''. `known` is the epoch that the caller knew, or ''.
-- `seen` is a topic, or '', in which the caller knows a record with this seq.
local function epoch()
  local known, safe, by_sentinel, seen, seen_seq = take(), take(), take() == '1', take(), take_number()
  local meta, facts = prefix .. 'meta', server_facts()
  local stored = call('HMGET', meta, 'epoch', 'replid', 'run', 'replicas')
  local before, replid_before, was_replicated = stored[1], stored[2], stored[4]
  local reason = loss(replid_before, stored[3], was_replicated or by_sentinel, safe, facts)
  if reason == 'ask' then
    return {'', reason}
  end
  if not was_replicated and (by_sentinel or tonumber(facts.connected_slaves or 0) > 0) then
    call('HSET', meta, 'replicas', 1)
  end
  if reason == '' and known ~= '' and has_lost(before, known, seen, seen_seq) then
    reason = 'lost'
  end
  if reason ~= '' then
    return begin_epoch(before, known, reason, replid_before, facts)
  end
  if not before then
    before = '1:0:' .. string.sub(facts.master_replid or 'unknown', 1, 8)
    call('HSET', meta, 'epoch', before)
    call('SADD', prefix .. 'epochs', before)
  end
  if facts.master_replid ~= replid_before then
    note_server(facts)
  end
  return {before, ''}
end

register('epoch', epoch, 'allow-oom')
