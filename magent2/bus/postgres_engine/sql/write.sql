-- Appends: a group of operations in one transaction. Each is checked in the order that `operations.py` documents, and a
-- refused one changes nothing, so that the others of the group are not affected.
--
-- Arguments. `names`: the topics of the group, sorted. The arrays `r_*` have one element per record, or are NULL if all
-- elements are; `r_topic` is a position in `names`. The arrays `o_*` have one per operation: `o_kind` is append, owned,
-- settle or later; its records are `o_count` from position `o_first` on. `o_lane` is the position of its lane, `o_token`
-- that of its owner, `o_n` its counter, `o_delay` a delay in ms, `o_refund` whether the attempt does not count. `o_rest` has
-- the conditions and heads, or NULL:
--   {"conditions": [[topic, seq] or [topic, field, text]], "heads": [[topic, {field: text}, [removed fields]]]}
-- The arrays `l_*` name the lanes, and `m_*` the mail that operations remove from them. No two records of the group have
-- the same topic and id.
--
-- Results. `codes`: NULL, or why an operation was refused; `details` then has what the message needs. `seqs` has the seq of
-- each record. `answers`: of a repeat, the seqs of the first time. `changed`, `versions`, `listed`: the topics that have changed,
-- and those of them that were created or whose head was set. `woken`: agents that have lanes which became ready.

-- An id is looked up by (tid, id). If topics seem to have one record each, the index of (tid, seq) looks as good to the
-- planner, and then it would read all records of a long topic. So it is told that topics are long.
ALTER TABLE records ALTER tid SET (n_distinct = -0.01);
ALTER TABLE old_ids ALTER tid SET (n_distinct = -0.01);

-- The seqs of an append as the answer to a repeat. Those of records that were in the log already are negative.
CREATE OR REPLACE FUNCTION answer_of$v(seqs bigint[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_agg(abs(s.seq) ORDER BY s.i), '[]') FROM unnest(seqs) WITH ORDINALITY AS s (seq, i)
$$;

CREATE OR REPLACE FUNCTION write$v(
    names text[],
    r_topic int[], r_id text[], r_digest text[], r_headers text[], r_lane text[], r_copy text[], r_draft text[],
    r_closes text[], r_blobs text[], r_payload text[],
    o_kind text[], o_first int[], o_count int[], o_lane int[], o_token text[], o_n bigint[], o_delay bigint[],
    o_refund boolean[], o_rest jsonb[], l_conversation text[], l_agent text[],
    m_operation int[], m_chat boolean[], m_seq bigint[], expected_ms bigint,
    OUT codes text[], OUT details text[], OUT seqs bigint[], OUT answers jsonb[], OUT at bigint,
    OUT changed text[], OUT versions bigint[], OUT listed text[], OUT woken text[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    t_id bigint[];
    t_last bigint[];
    t_deleted boolean[];
    t_head jsonb[];
    t_active bigint[];
    is_changed boolean[];
    is_listed boolean[];
    known_seq bigint[];
    known_digest text[];
    known_answer jsonb[];
    r_answer jsonb[];  -- of the records that are keys of an append of several
    blobs_found text[];
    l_id bigint[];
    l_owner text[];
    l_n bigint[];
    l_answer jsonb[];
    l_attempt bigint[];
    l_done text[];
    l_done_answer jsonb[];
    is_written boolean[];  -- lanes whose owner has appended
    given_up int[];  -- of each lane, the operation with which its owner gave it up
    has_mail boolean[];
    has_control boolean[];
    l_due bigint[];
    l_parked boolean[];
    l_idle bigint[];
    lane int;
    ready bigint[] := '{}';
    numbers bigint[] := '{}';
    rest jsonb;
    item jsonb;
    merged jsonb;
    kind text;
    code text;
    detail text;
    first int;
    final int;
    t int;
    size bigint;
    log_ms bigint;
BEGIN
    at := now_ms$v();
    IF l_agent IS NOT NULL THEN
        SELECT array_agg(f.lid ORDER BY n.i) INTO l_id
        FROM unnest(l_conversation, l_agent) WITH ORDINALITY AS n (conversation, agent, i)
        LEFT JOIN LATERAL (
            SELECT lid FROM lanes WHERE conversation = n.conversation AND agent = n.agent OFFSET 0
        ) AS f ON true;
        -- An append leaves claims free to put mail into the lane (`sort_inbox`), giving the lane up does not.
        PERFORM 1 FROM lanes l WHERE l.lid = ANY (l_id) ORDER BY l.lid FOR NO KEY UPDATE;
        IF 'settle' = ANY (o_kind) OR 'later' = ANY (o_kind) THEN
            PERFORM 1 FROM lanes l
            WHERE l.lid IN (
                SELECT l_id[o.lane] FROM unnest(o_kind, o_lane) AS o (kind, lane) WHERE o.kind IN ('settle', 'later')
            )
            ORDER BY l.lid FOR UPDATE;
        END IF;
        SELECT array_agg(f.owner ORDER BY n.i), array_agg(f.n ORDER BY n.i), array_agg(f.answer ORDER BY n.i),
            array_agg(f.attempt ORDER BY n.i), array_agg(f.done ORDER BY n.i), array_agg(f.done_answer ORDER BY n.i),
            array_agg(false), array_agg(NULL::int), array_agg(NULL::bigint), array_agg(false), array_agg(NULL::bigint)
        INTO l_owner, l_n, l_answer, l_attempt, l_done, l_done_answer, is_written, given_up, l_due, l_parked, l_idle
        FROM unnest(l_id) WITH ORDINALITY AS n (lid, i)
        LEFT JOIN LATERAL (SELECT * FROM lanes WHERE lid = n.lid OFFSET 0) AS f ON true;
    END IF;
    -- New rows first, in the order of the names, then all locks in the same order: no two groups can wait for each other.
    -- `OFFSET 0` and `= ANY` keep a plan from reading a whole table. It seems free to the planner if the table was empty
    -- when its statistics were taken.
    INSERT INTO topics (name)
    SELECT n.name FROM unnest(names) WITH ORDINALITY AS n (name, i)
    WHERE NOT EXISTS (SELECT 1 FROM topics o WHERE o.name = n.name OFFSET 0)
    ORDER BY n.i ON CONFLICT (name) DO NOTHING;
    SELECT array_agg(l.tid ORDER BY l.i), array_agg(l.last ORDER BY l.i), array_agg(l.deleted ORDER BY l.i),
        array_agg(l.head ORDER BY l.i), array_agg(l.active_ms ORDER BY l.i), array_agg(false), array_agg(false)
    INTO t_id, t_last, t_deleted, t_head, t_active, is_changed, is_listed
    FROM (
        SELECT n.i, o.tid, o.last, o.deleted, o.head, o.active_ms
        FROM unnest(names) WITH ORDINALITY AS n (name, i) JOIN topics o ON o.name = n.name
        WHERE o.name = ANY (names)
        ORDER BY n.i FOR UPDATE OF o
    ) AS l;
    IF r_id IS NOT NULL THEN
        SELECT array_agg(coalesce(k.seq, d.seq) ORDER BY r.i), array_agg(coalesce(k.digest, d.digest, '') ORDER BY r.i),
            array_agg(coalesce(k.answer, d.answer) ORDER BY r.i)
        INTO known_seq, known_digest, known_answer
        FROM unnest(r_topic, r_id) WITH ORDINALITY AS r (topic, id, i)
        LEFT JOIN LATERAL (
            SELECT seq, digest, answer FROM records WHERE tid = t_id[r.topic] AND records.id = r.id OFFSET 0
        ) AS k ON true
        LEFT JOIN LATERAL (
            SELECT seq, digest, answer FROM old_ids WHERE tid = t_id[r.topic] AND old_ids.id = r.id OFFSET 0
        ) AS d ON true;
    END IF;
    IF r_blobs IS NOT NULL THEN
        -- The lock keeps a sweep from dropping a blob that this group begins to name.
        SELECT array_agg(b.name) INTO blobs_found FROM (
            SELECT b.name FROM blobs b
            WHERE b.name IN (SELECT unnest(string_to_array(r.blobs, ',')) FROM unnest(r_blobs) AS r (blobs))
            ORDER BY b.name FOR KEY SHARE
        ) AS b;
    END IF;

    seqs := array_fill(NULL::bigint, ARRAY[cardinality(r_topic)]);
    codes := array_fill(NULL::text, ARRAY[cardinality(o_kind)]);
    details := codes;
    answers := array_fill(NULL::jsonb, ARRAY[cardinality(o_kind)]);
    r_answer := array_fill(NULL::jsonb, ARRAY[cardinality(r_topic)]);
    woken := '{}';
    <<operations>>
    FOR o IN 1 .. cardinality(o_kind) LOOP
        kind := o_kind[o];
        first := o_first[o];
        final := first + o_count[o] - 1;
        rest := o_rest[o];
        lane := o_lane[o];

        -- 1. the owner
        IF lane IS NOT NULL THEN
            IF l_owner[lane] IS DISTINCT FROM o_token[o] THEN
                IF kind <> 'owned' AND l_done[lane] = o_token[o] THEN
                    answers[o] := coalesce(l_done_answer[lane], '[]');
                ELSE
                    codes[o] := 'fenced';
                END IF;
                CONTINUE;
            END IF;
            IF kind = 'owned' AND o_n[o] <> l_n[lane] + 1 THEN
                IF o_n[o] > l_n[lane] THEN
                    codes[o] := 'counter';
                    details[o] := l_n[lane];
                ELSIF o_n[o] = l_n[lane] THEN
                    answers[o] := coalesce(l_answer[lane], '[]');
                ELSE
                    answers[o] := '[]';
                END IF;
                CONTINUE;
            END IF;
        -- 2. the key
        ELSIF known_seq[first] IS NOT NULL THEN
            IF known_digest[first] = r_digest[first] THEN
                answers[o] := coalesce(known_answer[first], to_jsonb(ARRAY[known_seq[first]]));
            ELSE
                codes[o] := 'conflict';
                details[o] := first;
            END IF;
            CONTINUE;
        END IF;
        -- 3. deleted topics
        FOR r IN first .. final LOOP
            IF t_deleted[r_topic[r]] THEN
                codes[o] := 'deleted';
                details[o] := names[r_topic[r]];
                CONTINUE operations;
            END IF;
        END LOOP;
        IF rest ? 'heads' THEN
            FOR item IN SELECT jsonb_array_elements(rest -> 'heads') LOOP
                IF t_deleted[(item ->> 0)::int] THEN
                    codes[o] := 'deleted';
                    details[o] := names[(item ->> 0)::int];
                    CONTINUE operations;
                END IF;
            END LOOP;
        END IF;
        -- 4. the other ids
        IF known_seq IS NOT NULL THEN
            FOR r IN first .. final LOOP
                IF known_seq[r] IS NOT NULL AND known_digest[r] <> r_digest[r] THEN
                    codes[o] := 'conflict';
                    details[o] := r;
                    CONTINUE operations;
                END IF;
            END LOOP;
        END IF;
        -- 5. conditions
        IF rest ? 'conditions' THEN
            FOR item IN SELECT jsonb_array_elements(rest -> 'conditions') LOOP
                t := item ->> 0;
                IF jsonb_array_length(item) = 2 THEN
                    IF t_last[t] <> (item ->> 1)::bigint THEN
                        codes[o] := 'last';
                        details[o] := jsonb_build_array(names[t], t_last[t], item -> 1);
                        CONTINUE operations;
                    END IF;
                ELSIF coalesce(t_head[t] ->> (item ->> 1), '') <> item ->> 2 THEN
                    codes[o] := 'head';
                    details[o] := jsonb_build_array(names[t], item -> 1, coalesce(t_head[t] ->> (item ->> 1), ''), item -> 2);
                    CONTINUE operations;
                END IF;
            END LOOP;
        END IF;
        -- 6. blobs
        FOR r IN first .. CASE WHEN r_blobs IS NULL THEN 0 ELSE final END LOOP
            IF r_blobs[r] IS NOT NULL AND NOT string_to_array(r_blobs[r], ',') <@ coalesce(blobs_found, '{}') THEN
                codes[o] := 'blob';
                SELECT b.name INTO detail FROM unnest(string_to_array(r_blobs[r], ',')) AS b (name)
                WHERE NOT b.name = ANY (coalesce(blobs_found, '{}')) LIMIT 1;
                details[o] := detail;
                CONTINUE operations;
            END IF;
        END LOOP;
        -- 7. the size of heads
        IF rest ? 'heads' THEN
            FOR item IN SELECT jsonb_array_elements(rest -> 'heads') LOOP
                t := item ->> 0;
                merged := (t_head[t] || (item -> 1)) - ARRAY(SELECT jsonb_array_elements_text(item -> 2));
                IF octet_length(merged::text) > $head_max_bytes THEN
                    SELECT sum(char_length(f.key) + octet_length(f.value)) INTO size FROM jsonb_each_text(merged) AS f;
                    IF size > $head_max_bytes THEN
                        codes[o] := 'size';
                        details[o] := jsonb_build_array(names[t], size);
                        CONTINUE operations;
                    END IF;
                END IF;
            END LOOP;
        END IF;

        -- The operation is accepted.
        FOR r IN first .. final LOOP
            t := r_topic[r];
            IF known_seq[r] IS NOT NULL THEN
                seqs[r] := -known_seq[r];  -- is in the log already
            ELSE
                t_last[t] := t_last[t] + 1;
                seqs[r] := t_last[t];
                is_changed[t] := true;
                IF t_active[t] = 0 THEN
                    t_active[t] := at;
                    is_listed[t] := true;
                END IF;
            END IF;
        END LOOP;
        IF lane IS NULL AND final > first THEN
            r_answer[first] := answer_of$v(seqs[first:final]);
        END IF;
        IF rest ? 'heads' THEN
            FOR item IN SELECT jsonb_array_elements(rest -> 'heads') LOOP
                t := item ->> 0;
                t_head[t] := (t_head[t] || (item -> 1)) - ARRAY(SELECT jsonb_array_elements_text(item -> 2));
                t_active[t] := at;
                is_changed[t] := true;
                is_listed[t] := true;
            END LOOP;
        END IF;
        IF kind = 'owned' THEN
            l_n[lane] := o_n[o];
            l_answer[lane] := CASE
                WHEN final < first THEN '[]' WHEN known_seq IS NULL THEN to_jsonb(seqs[first:final])
                ELSE answer_of$v(seqs[first:final]) END;
            is_written[lane] := true;
        ELSIF lane IS NOT NULL THEN
            l_owner[lane] := NULL;
            l_done[lane] := o_token[o];
            l_done_answer[lane] := CASE
                WHEN final < first THEN '[]' WHEN known_seq IS NULL THEN to_jsonb(seqs[first:final])
                ELSE answer_of$v(seqs[first:final]) END;
            given_up[lane] := o;
        END IF;
    END LOOP;

    IF m_operation IS NOT NULL THEN
        DELETE FROM mail m USING unnest(m_operation, m_chat, m_seq) AS x (operation, chat, seq)
        WHERE m.lid = l_id[o_lane[x.operation]] AND m.chat = x.chat AND m.seq = x.seq
            AND codes[x.operation] IS NULL AND answers[x.operation] IS NULL;
    END IF;
    IF true = ANY (is_written) THEN
        UPDATE lanes l SET n = w.n, answer = w.answer
        FROM unnest(l_id, l_n, l_answer, is_written, l_owner) AS w (lid, n, answer, written, owner)
        WHERE l.lid = w.lid AND w.written AND w.owner IS NOT NULL;
    END IF;
    IF cardinality(array_remove(given_up, NULL)) > 0 THEN
        SELECT array_agg(EXISTS (SELECT 1 FROM mail m WHERE m.lid = n.lid OFFSET 0) ORDER BY n.i),
            array_agg(EXISTS (SELECT 1 FROM mail m WHERE m.lid = n.lid AND NOT m.chat OFFSET 0) ORDER BY n.i)
        INTO has_mail, has_control
        FROM unnest(l_id) WITH ORDINALITY AS n (lid, i);
        log_ms := log_ms$v(expected_ms);
        FOR i IN 1 .. cardinality(given_up) LOOP
            CONTINUE WHEN given_up[i] IS NULL;
            kind := o_kind[given_up[i]];
            IF kind = 'settle' THEN
                l_attempt[i] := 0;
            ELSIF o_refund[given_up[i]] THEN
                l_attempt[i] := greatest(0, l_attempt[i] - 1);
            END IF;
            IF kind = 'later' AND has_control[i] THEN
                -- The command came while the lane was held, and intake leaves held lanes alone. So nothing else would
                -- make the lane ready.
                ready := ready || l_id[i];
                numbers := numbers || nextval('ready_front');
                woken := woken || l_agent[i];
            ELSIF kind = 'later' AND o_delay[given_up[i]] IS NULL THEN
                l_parked[i] := true;
            ELSIF kind = 'later' AND o_delay[given_up[i]] > 0 THEN
                l_due[i] := log_ms + o_delay[given_up[i]];
            ELSIF NOT has_mail[i] THEN
                l_idle[i] := log_ms;
                l_attempt[i] := 0;
            ELSE
                ready := ready || l_id[i];
                numbers := numbers || nextval(CASE kind WHEN 'settle' THEN 'ready_back' ELSE 'ready_front' END::regclass);
                woken := woken || l_agent[i];
            END IF;
        END LOOP;
        UPDATE lanes l
        SET owner = NULL, worker = NULL, nonce = NULL, answer = NULL, attempt = g.attempt, due_ms = g.due,
            parked = g.parked, idle_ms = g.idle, done = g.done, done_answer = g.done_answer
        FROM unnest(l_id, given_up, l_attempt, l_due, l_parked, l_idle, l_done, l_done_answer)
            AS g (lid, given_up, attempt, due, parked, idle, done, done_answer)
        WHERE l.lid = g.lid AND g.given_up IS NOT NULL;
    END IF;

    INSERT INTO records (tid, seq, at_ms, id, digest, answer, headers, lane, copy, draft, closes, blobs, payload)
    SELECT t_id[r.topic], r.seq, at, r.id, r.digest, r.answer,
        r.headers, r.lane, r.copy, r.draft, r.closes, r.blobs, r.payload
    FROM unnest(r_topic, seqs, r_id, r_digest, r_answer, r_headers, r_lane, r_copy, r_draft, r_closes, r_blobs, r_payload)
        AS r (topic, seq, id, digest, answer, headers, lane, copy, draft, closes, blobs, payload)
    WHERE r.seq > 0;
    IF blobs_found IS NOT NULL THEN
        INSERT INTO blob_refs
        SELECT DISTINCT t_id[r.topic], r.seq, b.name
        FROM unnest(r_topic, seqs, r_blobs) AS r (topic, seq, blobs),
            unnest(string_to_array(r.blobs, ',')) AS b (name)
        WHERE r.seq > 0;
    END IF;
    UPDATE topics o
    SET last = n.last, head = n.head, owner = (n.head ->> 'owner')::jsonb #>> '{}', active_ms = n.active,
        version = o.version + 1
    FROM unnest(t_id, t_last, t_head, t_active, is_changed) AS n (tid, last, head, active, changed)
    WHERE o.tid = n.tid AND n.changed;
    DELETE FROM topics WHERE tid = ANY (t_id) AND active_ms = 0;  -- names that were only locked
    IF cardinality(ready) > 0 THEN
        PERFORM make_ready$v(ready, numbers);
    END IF;
    SELECT coalesce(array_agg(o.name), '{}'), coalesce(array_agg(o.version), '{}'),
        coalesce(array_agg(o.name) FILTER (WHERE n.listed), '{}')
    INTO changed, versions, listed
    FROM unnest(t_id, is_changed, is_listed) AS n (tid, changed, listed) JOIN topics o ON o.tid = n.tid
    WHERE n.changed;
END $$;
