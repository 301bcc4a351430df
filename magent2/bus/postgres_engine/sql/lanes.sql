-- Lanes: claims, leases, and the order in which ready lanes are served.
--
-- Locks are taken in this order, each kind by its key: workers, inboxes, lanes, topics, records, blobs, turns. A claim waits
-- for no lane and no inbox: it passes over what another transaction holds, and says that there is more to claim. It may
-- wait for the creation of an inbox, so it creates inboxes before it locks lanes.
--
-- Subqueries with OFFSET 0 are looked up once per row of what stands before them. Without it, the planner may go through
-- the whole table instead: it does not know how many elements an array has, and plans are kept while tables grow.

-- The clock of the server in ms.
CREATE OR REPLACE FUNCTION now_ms$v() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- The log clock in ms: the clock of the server plus an offset that changes when that clock is set. So it runs on and does
-- not go back. `expected_ms` is the time by the monotonic clock of the caller, or NULL: it tells a clock that was set
-- forward from time in which nothing happened. The last time is stored once per second at most: otherwise all claims
-- would contend for this row. It is not part of the order of locks: a transaction that finds it locked stores nothing, as
-- the next one will.
CREATE OR REPLACE FUNCTION log_ms$v(expected_ms bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    server bigint := now_ms$v();
    ahead bigint;
    last bigint;
    found_ms bigint;
BEGIN
    SELECT c.ahead_ms, c.last_ms INTO ahead, last FROM clock c;
    found_ms := server + ahead;
    IF abs(found_ms - expected_ms) > $clock_jump_ms THEN
        found_ms := expected_ms;
    END IF;
    found_ms := greatest(found_ms, last);
    IF found_ms <> server + ahead OR found_ms - last > $clock_store_ms THEN
        PERFORM 1 FROM clock FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE clock SET ahead_ms = found_ms - server, last_ms = greatest(found_ms, last_ms);
        END IF;
    END IF;
    RETURN found_ms;
END $$;

-- The log clock for functions that do not write.
CREATE OR REPLACE FUNCTION peek_log_ms$v() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(now_ms$v() + ahead_ms, last_ms) FROM clock
$$;

-- Make lanes ready, whose rows the caller has locked. `numbers` are their places in the queue, in the order of `lids`.
-- A transaction calls this once, after all its other locks: the turns of two calls would not be locked in one order.
-- A principal joins at the end of the turns: control mail or a takeover puts a lane ahead of the others of its principal,
-- not ahead of other principals.
CREATE OR REPLACE FUNCTION make_ready$v(lids bigint[], numbers bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    who record;
    agents text[] := '{}';
    principals text[] := '{}';
    places bigint[] := '{}';
    place bigint;
BEGIN
    FOR who IN
        SELECT l.agent, coalesce(t.owner, '') AS principal, min(r.i) AS i,
            (array_agg(r.number ORDER BY r.i))[1] AS number, bool_or(q.turn IS NOT NULL) AS is_known
        FROM unnest(lids, numbers) WITH ORDINALITY AS r (lid, number, i)
        CROSS JOIN LATERAL (SELECT agent, conversation FROM lanes WHERE lid = r.lid OFFSET 0) AS l
        LEFT JOIN LATERAL (SELECT owner FROM topics WHERE name = 'stream:' || l.conversation OFFSET 0) AS t ON true
        LEFT JOIN LATERAL (
            SELECT turn FROM turns WHERE agent = l.agent AND principal = coalesce(t.owner, '') OFFSET 0
        ) AS q ON true
        GROUP BY 1, 2 ORDER BY 3
    LOOP
        IF NOT who.is_known THEN
            SELECT max(p.place) INTO place FROM unnest(agents, places) AS p (agent, place) WHERE p.agent = who.agent;
            IF place IS NULL THEN
                SELECT max(turn) INTO place FROM turns WHERE agent = who.agent;
            END IF;
            place := greatest(who.number, coalesce(place + 1, 0));
        END IF;
        agents := agents || who.agent;
        principals := principals || who.principal;
        places := places || CASE WHEN who.is_known THEN NULL ELSE place END;
    END LOOP;
    INSERT INTO turns AS old
    SELECT agent, principal, coalesce(p.place, 0) FROM unnest(agents, principals, places) AS p (agent, principal, place)
    ORDER BY agent COLLATE "C", principal COLLATE "C"
    ON CONFLICT (agent, principal) DO UPDATE SET turn = old.turn;  -- changes nothing, but locks the row
    UPDATE lanes l
    SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, due_ms = NULL, idle_ms = NULL, parked = false,
        ready = r.number,
        principal = coalesce((SELECT t.owner FROM topics t WHERE t.name = 'stream:' || l.conversation), '')
    FROM unnest(lids, numbers) AS r (lid, number)
    WHERE l.lid = r.lid;
END $$;

-- Make a lane without mail idle. The caller has locked its row.
CREATE OR REPLACE FUNCTION make_idle$v(lane bigint, log_ms bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE lanes
    SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, attempt = 0, due_ms = NULL, ready = NULL,
        parked = false, idle_ms = log_ms
    WHERE lid = lane
$$;

-- End the lease of a worker, whose row the caller has locked; `held` is the number of its lanes. Adds those that have
-- mail to `ready` and `numbers`: they go to the front in the order of their creation. With `passing`, lanes that another
-- transaction holds are left for the next claim, and the lease stays until then; `held` is then NULL.
CREATE OR REPLACE FUNCTION end_lease$v(
    name text, log_ms bigint, passing boolean, INOUT ready bigint[], INOUT numbers bigint[], OUT held bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked bigint[];
    lane bigint;
BEGIN
    IF passing THEN
        SELECT array_agg(l.lid ORDER BY l.lid DESC) INTO locked
        FROM (SELECT lid FROM lanes WHERE worker = name ORDER BY lid FOR UPDATE SKIP LOCKED) AS l;
    ELSE
        SELECT array_agg(l.lid ORDER BY l.lid DESC) INTO locked
        FROM (SELECT lid FROM lanes WHERE worker = name ORDER BY lid FOR UPDATE) AS l;
    END IF;
    SELECT count(*) INTO held FROM lanes WHERE worker = name;
    FOREACH lane IN ARRAY coalesce(locked, '{}') LOOP
        IF EXISTS (SELECT 1 FROM mail WHERE lid = lane) THEN
            ready := ready || lane;
            numbers := numbers || nextval('ready_front');
        ELSE
            PERFORM make_idle$v(lane, log_ms);
        END IF;
    END LOOP;
    IF held > coalesce(cardinality(locked), 0) THEN
        held := NULL;
    ELSE
        DELETE FROM workers WHERE worker = name;
    END IF;
END $$;

-- Sort new mail of one inbox into lanes. The caller has locked the row of the agent in `inboxes`. Adds the lanes that
-- become ready to `ready` and `numbers`. Mail from the first one on whose lane is locked is left for the next claim.
CREATE OR REPLACE FUNCTION sort_inbox$v(
    inbox_agent text, is_chat boolean, inbox bigint, cursor_seq bigint, last_seq bigint,
    INOUT ready bigint[], INOUT numbers bigint[], OUT sorted bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    seqs bigint[];
    conversations text[];
    times bigint[];
    rows_read bigint;
    held text[];
    locked text[];
    stop bigint;
    lane record;
BEGIN
    SELECT array_agg(r.seq ORDER BY r.seq) FILTER (WHERE r.is_mail), array_agg(r.lane ORDER BY r.seq) FILTER (WHERE r.is_mail),
        array_agg(r.at_ms ORDER BY r.seq) FILTER (WHERE r.is_mail), count(*), max(r.seq)
    INTO seqs, conversations, times, rows_read, sorted
    FROM (
        SELECT seq, records.lane, at_ms, records.lane IS NOT NULL AND payload IS NOT NULL AS is_mail FROM records
        WHERE tid = inbox AND seq > cursor_seq AND seq <= last_seq ORDER BY seq LIMIT $intake_max
    ) AS r;
    IF rows_read < $intake_max THEN
        sorted := last_seq;
    END IF;
    IF seqs IS NULL THEN
        RETURN;
    END IF;
    -- A held lane only gets the mail. The lock for that does not exclude the appends of its owner, or commands for a run
    -- that streams would rarely reach its lane. It excludes that the owner gives the lane up.
    SELECT array_agg(l.conversation) INTO held
    FROM (
        SELECT conversation FROM lanes
        WHERE agent = inbox_agent AND conversation = ANY (conversations) AND owner IS NOT NULL
        ORDER BY lid FOR KEY SHARE SKIP LOCKED
    ) AS l;
    SELECT held || array_agg(l.conversation) INTO locked
    FROM (
        SELECT conversation FROM lanes
        WHERE agent = inbox_agent AND conversation = ANY (conversations) AND owner IS NULL
        ORDER BY lid FOR UPDATE SKIP LOCKED
    ) AS l;
    SELECT min(m.seq) INTO stop
    FROM unnest(seqs, conversations) AS m (seq, conversation)
    WHERE NOT m.conversation = ANY (coalesce(locked, '{}'))
        AND EXISTS (SELECT 1 FROM lanes l WHERE l.agent = inbox_agent AND l.conversation = m.conversation OFFSET 0);
    IF stop IS NOT NULL THEN
        sorted := stop - 1;
    END IF;
    INSERT INTO lanes (conversation, agent, since_ms)
    SELECT m.conversation, inbox_agent, min(m.at_ms)
    FROM unnest(seqs, conversations, times) AS m (seq, conversation, at_ms)
    WHERE m.seq <= sorted AND NOT m.conversation = ANY (coalesce(locked, '{}'))
    GROUP BY m.conversation ORDER BY min(m.seq);
    INSERT INTO mail
    SELECT l.lid, is_chat, m.seq
    FROM unnest(seqs, conversations) AS m (seq, conversation)
    CROSS JOIN LATERAL (
        SELECT lid FROM lanes WHERE conversation = m.conversation AND agent = inbox_agent OFFSET 0
    ) AS l
    WHERE m.seq <= sorted
    ON CONFLICT DO NOTHING;
    FOR lane IN
        SELECT l.lid, l.idle_ms, min(m.at_ms) AS at_ms
        FROM unnest(seqs, conversations, times) AS m (seq, conversation, at_ms)
        CROSS JOIN LATERAL (
            SELECT * FROM lanes WHERE conversation = m.conversation AND agent = inbox_agent OFFSET 0
        ) AS l
        WHERE m.seq <= sorted AND l.owner IS NULL AND l.ready IS NULL
            AND (NOT is_chat OR (l.due_ms IS NULL AND NOT l.parked))
        GROUP BY l.lid, l.idle_ms ORDER BY min(m.seq)
    LOOP
        CONTINUE WHEN lane.lid = ANY (ready);
        IF lane.idle_ms IS NOT NULL THEN
            UPDATE lanes SET since_ms = lane.at_ms WHERE lid = lane.lid;
        END IF;
        ready := ready || lane.lid;
        numbers := numbers || nextval(CASE WHEN is_chat THEN 'ready_back' ELSE 'ready_front' END::regclass);
    END LOOP;
END $$;

-- Take up to `free` ready lanes for a claim. The principals of each agent take turns: one round serves every principal
-- up to `page` times, one lane each in turn. Principals that have fewer lanes, or that are over their share, leave. If
-- slots are free after a round, the others get another one. Who was served goes to the end of the turns.
CREATE OR REPLACE FUNCTION take_lanes$v(
    claimant text, claim_agents text[], free bigint, claim_nonce text, share double precision,
    slot_principals text[], slot_counts bigint[], OUT taken bigint[], OUT more boolean, OUT over_share boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    agents text[];  -- these arrays have one element per turn, in the order of the turns
    principals text[];
    used bigint[];  -- slots of the principal
    served bigint[];  -- in this round
    is_active boolean[];
    places bigint[];  -- the new places of those that were served
    last_place bigint;
    page bigint;
    candidates bigint[];  -- lanes of this round, in the order in which they are taken
    turns_of int[];  -- the turn of each candidate
    locked bigint[];
    chosen bigint[];
    i int;
BEGIN
    taken := '{}';
    more := false;
    over_share := false;
    SELECT array_agg(q.agent ORDER BY q.turn, q.agent, q.principal),
        array_agg(q.principal ORDER BY q.turn, q.agent, q.principal),
        array_agg(coalesce(s.count, 0) ORDER BY q.turn, q.agent, q.principal),
        array_agg(0), array_agg(true), array_agg(NULL::bigint)
    INTO agents, principals, used, served, is_active, places
    FROM unnest(claim_agents) AS a (agent)
    CROSS JOIN LATERAL (
        SELECT t.agent, t.principal, t.turn FROM turns t WHERE t.agent = a.agent
        ORDER BY t.turn LIMIT free + cardinality(slot_principals) + 1 FOR UPDATE SKIP LOCKED
    ) AS q
    LEFT JOIN unnest(slot_principals, slot_counts) AS s (principal, count) ON s.principal = q.principal;
    -- A row that is locked is that of a principal whose lanes another transaction takes or makes ready.
    SELECT count(*) > coalesce(cardinality(agents), 0) INTO more
    FROM unnest(claim_agents) AS a (agent)
    CROSS JOIN LATERAL (
        SELECT 1 FROM turns t WHERE t.agent = a.agent LIMIT free + cardinality(slot_principals) + 1
    ) AS q;
    IF agents IS NULL THEN
        RETURN;
    END IF;
    SELECT max(t.turn) INTO last_place FROM turns t WHERE t.agent = ANY (agents);
    WHILE free > 0 AND true = ANY (is_active) LOOP
        page := greatest(1, free / cardinality(array_positions(is_active, true)));
        served := array_fill(0, ARRAY[cardinality(agents)]);
        SELECT coalesce(array_agg(f.lid ORDER BY f.k, p.i), '{}'), coalesce(array_agg(p.i ORDER BY f.k, p.i), '{}')
        INTO candidates, turns_of
        FROM unnest(agents, principals, is_active) WITH ORDINALITY AS p (agent, principal, active, i)
        CROSS JOIN LATERAL (
            SELECT l.lid, row_number() OVER (ORDER BY l.ready) AS k FROM lanes l
            WHERE l.agent = p.agent AND l.principal = p.principal AND l.ready IS NOT NULL
            ORDER BY l.ready LIMIT page
        ) AS f
        WHERE p.active;
        locked := ARRAY(
            SELECT l.lid FROM lanes l WHERE l.lid = ANY (candidates) AND l.ready IS NOT NULL
            ORDER BY l.lid FOR UPDATE SKIP LOCKED
        );
        chosen := '{}';
        FOR c IN 1 .. cardinality(candidates) LOOP
            EXIT WHEN free = 0;
            i := turns_of[c];
            CONTINUE WHEN NOT is_active[i];
            IF principals[i] <> '' AND used[i] * (1 - share) >= share * free THEN
                over_share := true;
                is_active[i] := false;
                CONTINUE;
            END IF;
            IF NOT candidates[c] = ANY (locked) THEN  -- no later lane of this principal instead: its lanes keep their order
                more := true;
                is_active[i] := false;
                CONTINUE;
            END IF;
            chosen := chosen || candidates[c];
            free := free - 1;
            served[i] := served[i] + 1;
            last_place := last_place + 1;
            places[i] := last_place;
            IF cardinality(claim_agents) = 1 THEN
                used[i] := used[i] + 1;
            ELSE
                FOR j IN 1 .. cardinality(principals) LOOP
                    IF principals[j] = principals[i] THEN
                        used[j] := used[j] + 1;
                    END IF;
                END LOOP;
            END IF;
        END LOOP;
        UPDATE lanes l
        SET owner = claimant || '/' || claim_nonce || '/' || nextval('owner_number'), worker = claimant,
            nonce = claim_nonce, attempt = l.attempt + 1, n = 0, answer = NULL, ready = NULL
        WHERE l.lid = ANY (chosen);
        taken := taken || chosen;
        FOR j IN 1 .. cardinality(agents) LOOP
            is_active[j] := is_active[j] AND served[j] = page;
        END LOOP;
    END LOOP;
    UPDATE turns t SET turn = p.place
    FROM unnest(agents, principals, places) AS p (agent, principal, place)
    WHERE t.agent = p.agent AND t.principal = p.principal AND p.place IS NOT NULL AND cardinality(agents) > 1;
    DELETE FROM turns t
    USING unnest(agents, principals) AS p (agent, principal)
    WHERE t.agent = p.agent AND t.principal = p.principal AND NOT EXISTS (
        SELECT 1 FROM lanes l WHERE l.agent = p.agent AND l.principal = p.principal AND l.ready IS NOT NULL
    );
END $$;

-- Claim: renew the lease, return lanes of expired workers, sort new mail, take lanes. See `Claim` in `operations.py`.
-- `lanes` and `mail` have the rows of `claimed_lanes` and `lane_mail`.
CREATE OR REPLACE FUNCTION claim$v(
    claimant text, claim_agents text[], max_lanes bigint, lease_ms bigint, claim_nonce text, expected_ms bigint,
    share double precision, slot_principals text[], slot_counts bigint[],
    OUT more boolean, OUT wait_ms bigint, OUT now_ms bigint, OUT over_share boolean, OUT woken text[],
    OUT lanes json, OUT mail json
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    is_repeat boolean;
    ready bigint[] := '{}';
    numbers bigint[] := '{}';
    item record;
    cursors record;
    held bigint;
    sorted_control bigint;
    sorted_chat bigint;
    passed_over boolean;
    taken bigint[];
BEGIN
    -- A lost claim is an unclaimed lane (decision 46), so it is acknowledged before it is on disk.
    PERFORM set_config('synchronous_commit', 'off', true);
    now_ms := log_ms$v(expected_ms);
    more := false;
    over_share := false;
    woken := '{}';

    -- The own lease comes first: a worker whose lease has expired must not lose its lanes to its own claim.
    SELECT w.nonce = claim_nonce INTO is_repeat FROM workers w WHERE w.worker = claimant FOR UPDATE;
    INSERT INTO workers VALUES (claimant, claim_agents, now_ms + lease_ms, claim_nonce)
    ON CONFLICT (worker) DO UPDATE
    SET agents = excluded.agents, deadline_ms = excluded.deadline_ms, nonce = excluded.nonce;
    INSERT INTO inboxes (agent)
    SELECT a.agent FROM (SELECT DISTINCT n.agent FROM unnest(claim_agents) AS n (agent)) AS a
    WHERE NOT EXISTS (SELECT 1 FROM inboxes i WHERE i.agent = a.agent)
        AND EXISTS (SELECT 1 FROM topics t WHERE t.name IN ('control:' || a.agent, 'chat:' || a.agent))
    ORDER BY a.agent COLLATE "C" ON CONFLICT DO NOTHING;
    FOR item IN
        SELECT w.worker FROM workers w WHERE w.deadline_ms <= now_ms ORDER BY w.worker FOR UPDATE SKIP LOCKED
    LOOP
        SELECT woken || array_agg(DISTINCT l.agent) INTO woken FROM lanes l WHERE l.worker = item.worker;
        SELECT e.ready, e.numbers, e.held INTO ready, numbers, held
        FROM end_lease$v(item.worker, now_ms, true, ready, numbers) AS e;
        more := more OR held IS NULL;
    END LOOP;
    DELETE FROM lanes WHERE lid IN (
        SELECT l.lid FROM lanes l WHERE l.idle_ms < now_ms - $lane_memory_ms
        ORDER BY l.idle_ms LIMIT $idle_lanes_dropped_max FOR UPDATE SKIP LOCKED
    );

    FOR item IN  -- lanes whose delay has ended
        SELECT l.lid FROM lanes l WHERE l.agent = ANY (claim_agents) AND l.due_ms <= now_ms
        ORDER BY l.due_ms FOR UPDATE SKIP LOCKED
    LOOP
        IF EXISTS (SELECT 1 FROM mail m WHERE m.lid = item.lid) THEN
            ready := ready || item.lid;
            numbers := numbers || nextval('ready_back');
        ELSE
            PERFORM make_idle$v(item.lid, now_ms);
        END IF;
    END LOOP;

    FOR item IN  -- inboxes with new mail
        SELECT a.agent, control.tid AS control_tid, coalesce(control.last, 0) AS control_last,
            chat.tid AS chat_tid, coalesce(chat.last, 0) AS chat_last
        FROM (SELECT DISTINCT agent FROM unnest(claim_agents) AS n (agent)) AS a
        LEFT JOIN topics control ON control.name = 'control:' || a.agent
        LEFT JOIN topics chat ON chat.name = 'chat:' || a.agent
        LEFT JOIN inboxes i ON i.agent = a.agent
        WHERE control.last > coalesce(i.control, 0) OR chat.last > coalesce(i.chat, 0)
        ORDER BY a.agent COLLATE "C"
    LOOP
        SELECT i.control, i.chat INTO cursors FROM inboxes i WHERE i.agent = item.agent FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN  -- another claim sorts this inbox, or its topic was created just now
            more := true;
            CONTINUE;
        END IF;
        sorted_control := cursors.control;
        sorted_chat := cursors.chat;
        IF item.control_last > cursors.control THEN
            SELECT s.ready, s.numbers, s.sorted INTO ready, numbers, sorted_control FROM sort_inbox$v(
                item.agent, false, item.control_tid, cursors.control, item.control_last, ready, numbers) AS s;
        END IF;
        IF item.chat_last > cursors.chat THEN
            SELECT s.ready, s.numbers, s.sorted INTO ready, numbers, sorted_chat FROM sort_inbox$v(
                item.agent, true, item.chat_tid, cursors.chat, item.chat_last, ready, numbers) AS s;
        END IF;
        UPDATE inboxes SET control = sorted_control, chat = sorted_chat WHERE agent = item.agent;
        more := more OR sorted_control < item.control_last OR sorted_chat < item.chat_last;
    END LOOP;
    IF cardinality(ready) > 0 THEN
        PERFORM make_ready$v(ready, numbers);
    END IF;

    IF is_repeat THEN
        SELECT coalesce(array_agg(l.lid ORDER BY l.lid), '{}') INTO taken FROM lanes l
        WHERE l.worker = claimant AND l.nonce = claim_nonce;
    ELSIF max_lanes > 0 THEN
        SELECT t.taken, t.more, t.over_share INTO taken, passed_over, over_share FROM take_lanes$v(
            claimant, claim_agents, max_lanes, claim_nonce, share, slot_principals, slot_counts) AS t;
        more := more OR passed_over;
    ELSE
        taken := '{}';
    END IF;

    SELECT least(
        (SELECT min(l.due_ms) FROM lanes l WHERE l.agent = ANY (claim_agents) AND l.due_ms IS NOT NULL),
        (SELECT min(w.deadline_ms) FROM workers w
            WHERE w.worker <> claimant AND EXISTS (SELECT 1 FROM lanes l WHERE l.worker = w.worker))
    ) - now_ms INTO wait_ms;
    IF cardinality(taken) > 0 THEN
        SELECT json_agg(json_build_array(
            l.agent, l.conversation, l.token, l.attempt, l.principal, l.pending, l.history_last))
        INTO lanes FROM claimed_lanes$v(taken) AS l;
        SELECT json_agg(json_build_array(
            m.lane, m.chat, m.mail_seq, m.seq, m.id, m.at_ms, m.headers, m.draft, m.closes, m.blobs, m.payload))
        INTO mail FROM lane_mail$v(taken, $claim_mail_max) AS m;
    END IF;
END $$;

-- The lanes of a claim, in its order, with the number of their records.
CREATE OR REPLACE FUNCTION claimed_lanes$v(taken bigint[]) RETURNS TABLE (
    agent text, conversation text, token text, attempt bigint, principal text, pending bigint, history_last bigint
) LANGUAGE sql STABLE AS $$
    SELECT l.agent, l.conversation, l.owner, l.attempt, l.principal, (SELECT count(*) FROM mail m WHERE m.lid = l.lid),
        coalesce((SELECT t.last FROM topics t WHERE t.name = 'history:' || l.conversation), 0)
    FROM unnest(taken) WITH ORDINALITY AS c (lid, i)
    CROSS JOIN LATERAL (SELECT * FROM lanes WHERE lid = c.lid OFFSET 0) AS l
    ORDER BY c.i
$$;

-- The first mail of each of these lanes. `lane` is the position of the lane, from 1.
CREATE OR REPLACE FUNCTION lane_mail$v(taken bigint[], max_records bigint) RETURNS TABLE (
    lane bigint, chat boolean, mail_seq bigint, seq bigint, id text, at_ms bigint, headers text, draft text, closes text,
    blobs text, payload text
) LANGUAGE sql STABLE AS $$
    SELECT c.i, m.chat, m.seq, r.seq, r.id, r.at_ms, r.headers, r.draft, r.closes, r.blobs, r.payload
    FROM unnest(taken) WITH ORDINALITY AS c (lid, i)
    CROSS JOIN LATERAL (SELECT agent FROM lanes WHERE lid = c.lid OFFSET 0) AS l
    CROSS JOIN LATERAL (
        SELECT f.chat, f.seq FROM mail f WHERE f.lid = c.lid ORDER BY f.chat, f.seq LIMIT max_records
    ) AS m
    LEFT JOIN LATERAL (
        SELECT tid FROM topics WHERE name = CASE WHEN m.chat THEN 'chat:' ELSE 'control:' END || l.agent OFFSET 0
    ) AS t ON true
    LEFT JOIN LATERAL (SELECT * FROM records WHERE tid = t.tid AND records.seq = m.seq OFFSET 0) AS r ON true
    ORDER BY c.i, m.chat, m.seq
$$;

CREATE OR REPLACE FUNCTION renew$v(claimant text, lease_ms bigint, expected_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE workers SET deadline_ms = log_ms$v(expected_ms) + lease_ms WHERE worker = claimant;
    RETURN FOUND;
END $$;

-- End the lease of a worker now; return the number of lanes that it held, and their agents.
CREATE OR REPLACE FUNCTION leave$v(name text, OUT held bigint, OUT woken text[]) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ready bigint[];
    numbers bigint[];
BEGIN
    PERFORM 1 FROM workers WHERE worker = name FOR UPDATE;
    SELECT coalesce(array_agg(DISTINCT l.agent), '{}') INTO woken FROM lanes l WHERE l.worker = name;
    SELECT e.ready, e.numbers, e.held INTO ready, numbers, held
    FROM end_lease$v(name, log_ms$v(NULL), false, '{}', '{}') AS e;
    IF cardinality(ready) > 0 THEN
        PERFORM make_ready$v(ready, numbers);
    END IF;
END $$;
