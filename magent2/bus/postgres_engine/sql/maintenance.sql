-- Retention, erasing, deleting, blobs.
--
-- These functions are in PL/pgSQL, which keeps the plans of its statements. A function in SQL would be planned at each
-- call, which took longer than its work.
--
-- Retention (`trim`, `compact`, `expire`) does not wait for the disk: what a crash of the server undoes is removed by the
-- next sweep (decision 61). Erasing and deleting do wait, because a person was told that it is done.

-- Lock a topic and return its row; all columns are NULL if it does not exist.
CREATE OR REPLACE FUNCTION lock_topic$v(topic text) RETURNS topics LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    row topics;
BEGIN
    SELECT t.* INTO row FROM topics t WHERE t.name = topic FOR UPDATE;
    RETURN row;
END $$;

-- Note that content was removed, so that a scrub removes its bytes.
CREATE OR REPLACE FUNCTION ask_for_scrub$v() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE scrub SET asked_ms = CASE WHEN requests = 0 THEN now_ms$v() ELSE asked_ms END, requests = requests + 1;
END $$;

-- Drop these records of a topic, and remember their ids, so that a late repeat is still recognized.
CREATE OR REPLACE FUNCTION drop_records$v(topic bigint, seqs bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    newest bigint;
BEGIN
    -- Records before their blobs, as `delete` does.
    WITH dropped AS (DELETE FROM records WHERE tid = topic AND seq = ANY (seqs) RETURNING seq, id, digest, answer)
    INSERT INTO old_ids (tid, seq, id, digest, answer)
    SELECT topic, d.seq, d.id, d.digest, d.answer FROM dropped d WHERE d.id IS NOT NULL;
    DELETE FROM blob_refs WHERE tid = topic AND seq = ANY (seqs);
    SELECT o.seq INTO newest FROM old_ids o WHERE o.tid = topic ORDER BY o.seq DESC OFFSET $ids_kept LIMIT 1;
    IF FOUND THEN
        DELETE FROM old_ids WHERE tid = topic AND seq <= newest;
    END IF;
END $$;

-- The last seq of an inbox before its first unsettled mail: mail in a lane, or not yet sorted into one. The caller has
-- locked the row of the agent in `inboxes`.
CREATE OR REPLACE FUNCTION settled_until$v(topic topics, bound bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    is_chat boolean := topic.kind = 'chat:';
    inbox_agent text := substr(topic.name, length(topic.kind) + 1);
    sorted bigint;
    unsettled bigint;
BEGIN
    IF topic.kind NOT IN ('chat:', 'control:') THEN
        RETURN bound;
    END IF;
    SELECT CASE WHEN is_chat THEN i.chat ELSE i.control END INTO sorted FROM inboxes i WHERE i.agent = inbox_agent;
    SELECT least(
        (SELECT min(m.seq) FROM mail m JOIN lanes l ON l.lid = m.lid WHERE m.chat = is_chat AND l.agent = inbox_agent),
        (SELECT r.seq FROM records r
            WHERE r.tid = topic.tid AND r.seq > coalesce(sorted, 0) AND r.seq <= bound
                AND r.lane IS NOT NULL AND r.payload IS NOT NULL
            ORDER BY r.seq LIMIT 1)
    ) INTO unsettled;
    RETURN least(bound, unsettled - 1);
END $$;

CREATE OR REPLACE FUNCTION trim$v(
    topic text, keep bigint, max_age_ms bigint, through bigint, max_records bigint,
    OUT floor bigint, OUT dropped bigint, OUT more boolean, OUT changed text[], OUT versions bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    row topics;
    seqs bigint[];
    bound bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF topic LIKE 'chat:%' OR topic LIKE 'control:%' THEN  -- no claim sorts mail meanwhile
        PERFORM 1 FROM inboxes i WHERE i.agent = substr(topic, strpos(topic, ':') + 1) FOR SHARE;
    END IF;
    row := lock_topic$v(topic);
    floor := coalesce(row.floor, 0);
    dropped := 0;
    more := false;
    changed := '{}';
    versions := '{}';
    IF row.tid IS NULL OR row.deleted THEN
        RETURN;
    END IF;
    IF through IS NOT NULL THEN
        bound := least(through, row.last);
    ELSIF keep IS NOT NULL THEN
        SELECT r.seq INTO bound FROM records r WHERE r.tid = row.tid ORDER BY r.seq DESC OFFSET keep LIMIT 1;
    ELSE
        SELECT coalesce(min(p.seq) FILTER (WHERE p.at_ms > now_ms$v() - max_age_ms) - 1, row.last) INTO bound
        FROM (SELECT r.seq, r.at_ms FROM records r WHERE r.tid = row.tid ORDER BY r.seq LIMIT max_records + 1) AS p;
    END IF;
    bound := settled_until$v(row, coalesce(bound, 0));
    SELECT array_agg(p.seq ORDER BY p.seq) INTO seqs
    FROM (SELECT r.seq FROM records r WHERE r.tid = row.tid AND r.seq <= bound ORDER BY r.seq LIMIT max_records + 1) AS p;
    IF seqs IS NULL THEN
        RETURN;
    END IF;
    more := cardinality(seqs) > max_records;
    seqs := seqs[1:max_records];
    dropped := cardinality(seqs);
    floor := seqs[dropped];
    PERFORM drop_records$v(row.tid, seqs);
    UPDATE topics t SET floor = trim$v.floor, version = t.version + 1 WHERE t.tid = row.tid;
    changed := ARRAY[topic];
    versions := ARRAY[row.version + 1];
END $$;

CREATE OR REPLACE FUNCTION compact$v(
    topic text, min_age_ms bigint, after bigint, max_drafts bigint, OUT dropped bigint, OUT next bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    row topics;
    seqs bigint[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    row := lock_topic$v(topic);
    dropped := 0;
    IF row.tid IS NULL THEN
        RETURN;
    END IF;
    WITH drafts AS (
        SELECT r.seq, r.draft FROM records r
        WHERE r.tid = row.tid AND r.seq > after AND r.draft IS NOT NULL ORDER BY r.seq LIMIT max_drafts
    ), closings AS (
        SELECT d.draft, (
            SELECT max(c.seq) FROM records c
            WHERE c.tid = row.tid AND c.closes = d.draft AND c.at_ms <= now_ms$v() - min_age_ms
        ) AS seq FROM (SELECT DISTINCT draft FROM drafts) AS d
    )
    SELECT array_agg(d.seq) FILTER (WHERE d.seq < c.seq), CASE WHEN count(*) = max_drafts THEN max(d.seq) END
    INTO seqs, next
    FROM drafts d LEFT JOIN closings c ON c.draft = d.draft;
    IF seqs IS NOT NULL THEN
        dropped := cardinality(seqs);
        PERFORM drop_records$v(row.tid, seqs);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION erase$v(topic text, erased bigint[], forget boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    row topics := lock_topic$v(topic);
    found_records bigint;
BEGIN
    PERFORM ask_for_scrub$v();
    IF row.tid IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE records r
    SET payload = NULL, headers = NULL, blobs = NULL, copy = NULL,
        digest = CASE WHEN forget AND r.id IS NOT NULL THEN '' ELSE r.digest END
    WHERE r.tid = row.tid AND r.seq = ANY (erased);
    GET DIAGNOSTICS found_records = ROW_COUNT;
    DELETE FROM blob_refs WHERE tid = row.tid AND seq = ANY (erased);
    RETURN found_records;
END $$;

-- The agents that have mail of a conversation in their inboxes.
CREATE OR REPLACE FUNCTION mailed_agents$v(asked text) RETURNS SETOF text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT DISTINCT substr(t.name, length(t.kind) + 1)
    FROM records r CROSS JOIN LATERAL (SELECT name, kind FROM topics WHERE tid = r.tid OFFSET 0) AS t
    WHERE r.copy = asked AND t.kind IN ('chat:', 'control:');
END $$;

-- Lock what a deletion of these topics, and of a conversation or NULL, changes: inboxes, lanes, topics. `names` are sorted;
-- those that do not exist are created. Returns the lanes, and the agents whose inboxes are among the topics: their lanes
-- lose their mail.
--
-- Lanes are created by claims that have locked an inbox. So no lane of the conversation is added while its inboxes are
-- locked. An inbox without a row cannot be locked: the first claim of its agent may sort it at this moment. So its row is
-- created first. If mail to another agent was sent before the topics were locked, the caller has to begin again.
CREATE OR REPLACE FUNCTION lock_for_delete$v(
    names text[], deleted_conversation text, OUT agents text[], OUT lids bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    inbox_agents text[];
BEGIN
    SELECT array_agg(substr(n.name, strpos(n.name, ':') + 1)) INTO inbox_agents FROM unnest(names) AS n (name)
    WHERE n.name LIKE 'chat:%' OR n.name LIKE 'control:%';
    SELECT array_agg(i.agent) INTO agents FROM inboxes i WHERE i.agent = ANY (inbox_agents);
    inbox_agents := coalesce(agents, '{}') || ARRAY(SELECT m.agent FROM mailed_agents$v(deleted_conversation) AS m (agent));
    INSERT INTO inboxes (agent)
    SELECT n.agent FROM (SELECT DISTINCT u.agent FROM unnest(inbox_agents) AS u (agent)) AS n
    WHERE NOT EXISTS (SELECT 1 FROM inboxes i WHERE i.agent = n.agent)
    ORDER BY n.agent COLLATE "C" ON CONFLICT DO NOTHING;
    PERFORM 1 FROM inboxes i WHERE i.agent = ANY (inbox_agents) ORDER BY i.agent FOR UPDATE;
    IF agents IS NULL THEN  -- most conversations are not agents, and there is no index for lanes of an agent
        SELECT array_agg(l.lid) INTO lids FROM (
            SELECT lid FROM lanes WHERE conversation = deleted_conversation ORDER BY lid FOR UPDATE
        ) AS l;
    ELSE
        SELECT array_agg(l.lid) INTO lids FROM (
            SELECT lid FROM lanes WHERE conversation = deleted_conversation OR agent = ANY (agents)
            ORDER BY lid FOR UPDATE
        ) AS l;
    END IF;
    lids := coalesce(lids, '{}');
    INSERT INTO topics (name)
    SELECT n.name FROM unnest(names) WITH ORDINALITY AS n (name, i)
    WHERE NOT EXISTS (SELECT 1 FROM topics o WHERE o.name = n.name)
    ORDER BY n.i ON CONFLICT (name) DO NOTHING;
    PERFORM 1 FROM topics t WHERE t.name = ANY (names) ORDER BY t.name FOR UPDATE;
    IF EXISTS (SELECT 1 FROM mailed_agents$v(deleted_conversation) AS m (agent) WHERE NOT m.agent = ANY (inbox_agents))
        OR EXISTS (SELECT 1 FROM lanes l WHERE l.conversation = deleted_conversation AND NOT l.lid = ANY (lids))
    THEN
        RAISE serialization_failure USING MESSAGE = 'the conversation has got mail for another agent; delete it again';
    END IF;
END $$;

-- Delete topics, and with a conversation its lanes and its copies in other topics, after `lock_for_delete`.
CREATE OR REPLACE FUNCTION delete_locked$v(
    names text[], deleted_conversation text, agents text[], lids bigint[], OUT changed text[], OUT versions bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    tids bigint[];
    unnamed text[];
    item record;
    at bigint := now_ms$v();
BEGIN
    SELECT array_agg(o.tid) INTO tids FROM topics o WHERE o.name = ANY (names) AND NOT o.deleted;
    tids := coalesce(tids, '{}');
    UPDATE topics t
    SET deleted = true, floor = t.last, head = '{}', owner = NULL, active_ms = at, version = t.version + 1
    WHERE t.tid = ANY (tids);
    WITH gone AS (DELETE FROM blob_refs b WHERE b.tid = ANY (tids) RETURNING b.name)
    SELECT array_agg(DISTINCT g.name) INTO unnamed FROM gone g;
    DELETE FROM records r WHERE r.tid = ANY (tids);
    DELETE FROM old_ids o WHERE o.tid = ANY (tids);
    FOR item IN
        SELECT t.kind = 'chat:' AS is_chat, substr(t.name, length(t.kind) + 1) AS agent FROM topics t
        WHERE agents IS NOT NULL AND t.tid = ANY (tids) AND t.kind IN ('chat:', 'control:')
            AND substr(t.name, length(t.kind) + 1) = ANY (agents)
    LOOP
        DELETE FROM mail m USING lanes l
        WHERE m.lid = ANY (lids) AND l.lid = m.lid AND l.agent = item.agent AND m.chat = item.is_chat;
        UPDATE lanes l SET attempt = 0, ready = NULL, due_ms = NULL, parked = false, idle_ms = log_ms$v(NULL)
        WHERE l.lid = ANY (lids) AND l.agent = item.agent AND l.owner IS NULL
            AND NOT EXISTS (SELECT 1 FROM mail m WHERE m.lid = l.lid);
    END LOOP;
    IF deleted_conversation IS NOT NULL THEN
        WITH copies AS (
            SELECT r.tid, r.seq FROM records r WHERE r.copy = deleted_conversation ORDER BY r.tid, r.seq FOR UPDATE
        ), erased AS (
            UPDATE records r
            SET payload = NULL, headers = NULL, blobs = NULL, copy = NULL,
                digest = CASE WHEN r.id IS NULL THEN NULL ELSE '' END
            FROM copies c WHERE r.tid = c.tid AND r.seq = c.seq
        ), gone AS (
            DELETE FROM blob_refs b USING copies c WHERE b.tid = c.tid AND b.seq = c.seq RETURNING b.name
        )
        SELECT unnamed || array_agg(DISTINCT g.name) INTO unnamed FROM gone g;
        -- Without its row, the token of the lane's owner matches nothing any more: the owner is fenced.
        DELETE FROM mail m USING lanes l
        WHERE m.lid = ANY (lids) AND l.lid = m.lid AND l.conversation = deleted_conversation;
        DELETE FROM lanes l WHERE l.lid = ANY (lids) AND l.conversation = deleted_conversation;
        PERFORM drop_blobs$v(unnamed);
    END IF;
    SELECT coalesce(array_agg(t.name), '{}'), coalesce(array_agg(t.version), '{}') INTO changed, versions
    FROM topics t WHERE t.tid = ANY (tids);
END $$;

CREATE OR REPLACE FUNCTION delete$v(
    names text[], deleted_conversation text, scrub boolean, OUT changed text[], OUT versions bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked record;
BEGIN
    SELECT l.agents, l.lids INTO locked FROM lock_for_delete$v(names, deleted_conversation) AS l;
    IF scrub THEN
        PERFORM ask_for_scrub$v();
    END IF;
    SELECT d.changed, d.versions INTO changed, versions
    FROM delete_locked$v(names, deleted_conversation, locked.agents, locked.lids) AS d;
END $$;

-- Drop those of these blobs that no record names. An append that names one locks it first, so after this lock every
-- reference is visible.
CREATE OR REPLACE FUNCTION drop_blobs$v(names text[]) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    free text[];
    dropped bigint;
BEGIN
    SELECT array_agg(b.name) INTO free
    FROM (SELECT name FROM blobs WHERE name = ANY (names) ORDER BY name FOR UPDATE SKIP LOCKED) AS b;
    DELETE FROM blobs b
    WHERE b.name = ANY (free) AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.name = b.name);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    RETURN dropped;
END $$;

-- Whether a conversation with these topics exists and is not in use. See `Expire` in `operations.py`.
CREATE OR REPLACE FUNCTION is_idle$v(names text[], asked text, since_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM topics t WHERE t.name = 'stream:' || asked AND NOT t.deleted AND t.active_ms > 0)
        AND NOT EXISTS (
            SELECT 1 FROM topics t WHERE t.name = ANY (names) AND NOT t.deleted AND (
                t.active_ms > since_ms
                OR (SELECT r.at_ms FROM records r WHERE r.tid = t.tid ORDER BY r.seq DESC LIMIT 1) > since_ms
            )
        )
        AND NOT EXISTS (
            SELECT 1 FROM lanes l
            WHERE l.conversation = asked AND EXISTS (SELECT 1 FROM mail m WHERE m.lid = l.lid OFFSET 0)
        )
        AND NOT EXISTS (  -- mail that no claim has sorted yet
            SELECT 1 FROM records r
            CROSS JOIN LATERAL (SELECT name, kind FROM topics WHERE tid = r.tid OFFSET 0) AS t
            LEFT JOIN LATERAL (
                SELECT chat, control FROM inboxes WHERE agent = substr(t.name, length(t.kind) + 1) OFFSET 0
            ) AS i ON true
            WHERE r.copy = asked AND r.lane IS NOT NULL AND r.payload IS NOT NULL AND t.kind IN ('chat:', 'control:')
                AND r.seq > coalesce(CASE t.kind WHEN 'chat:' THEN i.chat ELSE i.control END, 0)
        );
END $$;

-- `names` are sorted.
CREATE OR REPLACE FUNCTION expire$v(
    names text[], expired text, idle_ms bigint, dry_run boolean, OUT expired_now boolean, OUT changed text[],
    OUT versions bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    since_ms bigint := now_ms$v() - idle_ms;
    locked record;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    changed := '{}';
    versions := '{}';
    expired_now := is_idle$v(names, expired, since_ms);
    IF NOT expired_now OR dry_run THEN
        RETURN;
    END IF;
    SELECT l.agents, l.lids INTO locked FROM lock_for_delete$v(names, expired) AS l;
    expired_now := is_idle$v(names, expired, since_ms);
    IF expired_now THEN
        SELECT d.changed, d.versions INTO changed, versions
        FROM delete_locked$v(names, expired, locked.agents, locked.lids) AS d;
    ELSE
        DELETE FROM topics t WHERE t.name = ANY (names) AND t.active_ms = 0;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION sweep_blobs$v(min_age_ms bigint, max_blobs bigint, dry_run boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(b.name) INTO names FROM (
        SELECT o.name FROM blobs o
        WHERE o.at_ms <= now_ms$v() - min_age_ms AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.name = o.name)
        LIMIT CASE WHEN dry_run THEN NULL ELSE max_blobs END
    ) AS b;
    IF dry_run THEN
        RETURN coalesce(cardinality(names), 0);
    END IF;
    RETURN drop_blobs$v(coalesce(names, '{}'));
END $$;
