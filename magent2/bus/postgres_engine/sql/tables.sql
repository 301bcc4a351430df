-- Tables of a log, in a schema of its own.
--
-- topics    `kind` is the name up to its first colon, or '' without one. A row with `active_ms = 0` is not a topic yet:
--           an append that was refused, or a condition, has only locked the name. `head` has the fields as JSON texts.
--           `version` counts the changes of the topic. An append changes no indexed column, so its update is a HOT one.
-- records   absent values are NULL. A payload of NULL is an erased record. `lane` is '' for mail without a conversation.
--           `answer` has the seqs of the whole append, if it had more than one record; it answers a repeat.
-- old_ids   ids of records that retention has dropped; their repeats are still recognized.
-- inboxes   the seqs up to which an agent's inboxes are sorted into lanes.
-- lanes     a lane without owner has `ready` (its place in the queue), `due_ms` (delayed), `parked` or `idle_ms`. Both
--           times are of the log clock. `principal` is the owner of the conversation when the lane became ready.
-- turns     the principals that have ready lanes of an agent, in the order in which claims serve them. A transaction
--           that makes a lane ready locks this row until its commit, so a row is only removed when no lane is ready.
-- mail      what is in a lane: `chat` is false for control mail; `seq` is the record's in that inbox.
-- clock     the log clock: what it adds to the clock of the server, and the last time that was stored (decision 28).
-- scrub     what is known of the next scrub (`ScrubState`).
--
-- Rows of topics, lanes and mail change with every message. Autovacuum therefore comes when a fiftieth of them is dead, and
-- does not pause: by default it comes at a fifth, and a busy log would grow faster than it works.
CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE topics (
    tid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    kind text COLLATE "C" NOT NULL GENERATED ALWAYS AS (left(name, strpos(name, ':'))) STORED,
    last bigint NOT NULL DEFAULT 0,
    floor bigint NOT NULL DEFAULT 0,
    deleted boolean NOT NULL DEFAULT false,
    head jsonb NOT NULL DEFAULT '{}',
    owner text COLLATE "C",
    active_ms bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX topics_kind ON topics (kind, active_ms, name) WHERE NOT deleted AND active_ms > 0;
CREATE INDEX topics_owner ON topics (kind, owner, active_ms, name)
    WHERE NOT deleted AND active_ms > 0 AND owner IS NOT NULL;
CREATE INDEX topics_deleted ON topics (kind, active_ms) WHERE deleted;
CREATE TABLE records (
    tid bigint NOT NULL,
    seq bigint NOT NULL,
    at_ms bigint NOT NULL,
    id text COLLATE "C",
    digest text COLLATE "C",
    answer jsonb,
    headers text COLLATE "C",
    lane text COLLATE "C",
    copy text COLLATE "C",
    draft text COLLATE "C",
    closes text COLLATE "C",
    blobs text COLLATE "C",
    payload text COLLATE "C",
    PRIMARY KEY (tid, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX records_id ON records (tid, id) WHERE id IS NOT NULL;
CREATE INDEX records_copy ON records (copy) WHERE copy IS NOT NULL;
CREATE INDEX records_draft ON records (tid, seq) WHERE draft IS NOT NULL;
CREATE INDEX records_closes ON records (tid, closes) WHERE closes IS NOT NULL;
CREATE TABLE old_ids (
    tid bigint NOT NULL,
    seq bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    answer jsonb,
    PRIMARY KEY (tid, id)
);
CREATE INDEX old_ids_seq ON old_ids (tid, seq);
CREATE TABLE inboxes (
    agent text COLLATE "C" PRIMARY KEY, control bigint NOT NULL DEFAULT 0, chat bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE lanes (
    lid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    conversation text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    owner text COLLATE "C",
    worker text COLLATE "C",
    nonce text COLLATE "C",
    n bigint NOT NULL DEFAULT 0,
    answer jsonb,
    attempt bigint NOT NULL DEFAULT 0,
    since_ms bigint NOT NULL,
    ready bigint,
    due_ms bigint,
    parked boolean NOT NULL DEFAULT false,
    done text COLLATE "C",
    done_answer jsonb,
    idle_ms bigint,
    principal text COLLATE "C" NOT NULL DEFAULT '',
    UNIQUE (conversation, agent)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lanes_ready ON lanes (agent, principal, ready) WHERE ready IS NOT NULL;
CREATE INDEX lanes_due ON lanes (agent, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX lanes_worker ON lanes (worker) WHERE worker IS NOT NULL;
CREATE INDEX lanes_parked ON lanes (agent) WHERE parked;
CREATE INDEX lanes_idle ON lanes (idle_ms) WHERE idle_ms IS NOT NULL;
CREATE TABLE turns (
    agent text COLLATE "C", principal text COLLATE "C", turn bigint NOT NULL, PRIMARY KEY (agent, principal)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX turns_order ON turns (agent, turn);
CREATE TABLE mail (lid bigint, chat boolean, seq bigint, PRIMARY KEY (lid, chat, seq))
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE workers (
    worker text COLLATE "C" PRIMARY KEY, agents text[] NOT NULL, deadline_ms bigint NOT NULL, nonce text NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE blobs (name text COLLATE "C" PRIMARY KEY, at_ms bigint NOT NULL, data bytea NOT NULL);
CREATE TABLE blob_refs (tid bigint, seq bigint, name text COLLATE "C", PRIMARY KEY (tid, seq, name));
CREATE INDEX blob_refs_name ON blob_refs (name);
CREATE TABLE clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), ahead_ms bigint NOT NULL DEFAULT 0, last_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO clock DEFAULT VALUES;
CREATE TABLE scrub (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), requests bigint NOT NULL DEFAULT 0,
    asked_ms bigint NOT NULL DEFAULT 0, rest_until_ms bigint NOT NULL DEFAULT 0
);
INSERT INTO scrub DEFAULT VALUES;
CREATE SEQUENCE ready_back;
CREATE SEQUENCE ready_front INCREMENT -1 MAXVALUE 0 MINVALUE -9223372036854775807 START 0;
CREATE SEQUENCE owner_number;

-- Statistics have samples of the values of a column, which would outlive the deletion of a text or of its digest. No
-- statement searches by these columns.
ALTER TABLE topics ALTER head SET STATISTICS 0;
ALTER TABLE records ALTER payload SET STATISTICS 0, ALTER headers SET STATISTICS 0, ALTER digest SET STATISTICS 0;
ALTER TABLE old_ids ALTER digest SET STATISTICS 0;
ALTER TABLE blobs ALTER data SET STATISTICS 0;
