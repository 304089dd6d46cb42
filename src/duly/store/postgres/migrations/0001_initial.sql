-- The first schema. The partition, or the topic, leads every key of what grows; ids are never reused.
-- Statements run with this schema alone in the search path.

CREATE TABLE meta (
    key   TEXT COLLATE "C" PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE tenant (
    id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE topic (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        BIGINT NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    settings      TEXT NOT NULL,
    paused        SMALLINT NOT NULL DEFAULT 0,
    version       BIGINT NOT NULL DEFAULT 1,
    created_at_ms BIGINT NOT NULL,
    UNIQUE (tenant, name)
);

-- topic is NULL once the topic is deleted and the partition waits to be erased.
-- next_offset is a floor: the newest block says where the log really ends.
-- look_at_ms: when a chore wants to look at it; NULL while there is nothing to do.
CREATE TABLE part (
    id              BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          BIGINT NOT NULL,
    topic           BIGINT,
    number          BIGINT NOT NULL,
    first_offset    BIGINT NOT NULL DEFAULT 0,
    next_offset     BIGINT NOT NULL DEFAULT 0,
    published_at_ms BIGINT NOT NULL DEFAULT 0,
    archived_to     BIGINT NOT NULL DEFAULT 0,
    archive_from    BIGINT NOT NULL DEFAULT 0,
    look_at_ms      BIGINT
);
CREATE INDEX part_look ON part (look_at_ms) WHERE look_at_ms IS NOT NULL;
CREATE INDEX part_of_topic ON part (topic, number);

-- Who wrote to a topic last. Whoever finds its own turn here may trust what it remembers (seat.py).
-- next_id: where ids of runs go on.
CREATE TABLE turn (
    topic   BIGINT NOT NULL,
    n       BIGINT NOT NULL,
    session BIGINT NOT NULL,
    next_id BIGINT NOT NULL,
    PRIMARY KEY (topic, n)
);

-- Ids by the thousand: of leases, and of those who have the store open. Each value is the first of a thousand.
CREATE SEQUENCE ids_by_thousand INCREMENT 1000 START 1000;

-- What applications' own transactions leave for whoever has the topic's turn (inbox.py).
-- xid: the transaction that wrote it; a snapshot tells below which number there is nothing more to come.
CREATE TABLE inbox (
    topic   BIGINT NOT NULL,
    xid     XID8 NOT NULL DEFAULT pg_current_xact_id(),
    id      BIGINT GENERATED ALWAYS AS IDENTITY,
    kind    TEXT COLLATE "C" NOT NULL,
    data    BYTEA NOT NULL,
    payload BYTEA,
    PRIMARY KEY (topic, xid, id)
);
CREATE INDEX inbox_xid ON inbox (xid);

-- Mail that could not be taken in, and why: nothing that was committed is lost in silence.
CREATE TABLE refused (
    id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic   BIGINT NOT NULL,
    at_ms   BIGINT NOT NULL,
    why     TEXT NOT NULL,
    kind    TEXT COLLATE "C" NOT NULL,
    data    BYTEA NOT NULL,
    payload BYTEA
);

CREATE TABLE block (
    partition       BIGINT NOT NULL,
    base            BIGINT NOT NULL,
    count           BIGINT NOT NULL,
    bytes           BIGINT NOT NULL,
    published_at_ms BIGINT NOT NULL,
    chunk           BIGINT,
    data            BYTEA NOT NULL,
    PRIMARY KEY (partition, base)
);

CREATE TABLE kept (
    partition BIGINT NOT NULL,
    "offset"  BIGINT NOT NULL,
    data      BYTEA NOT NULL,
    PRIMARY KEY (partition, "offset")
);

CREATE TABLE receipt (
    topic         BIGINT NOT NULL,
    publish_id    TEXT COLLATE "C" NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    receipt       BYTEA NOT NULL,
    PRIMARY KEY (topic, publish_id)
);
CREATE INDEX receipt_expires ON receipt (expires_at_ms);

CREATE TABLE gone (
    partition BIGINT NOT NULL,
    base      BIGINT NOT NULL,
    until_ms  BIGINT NOT NULL,
    publishes BYTEA NOT NULL,
    PRIMARY KEY (partition, base)
);
CREATE INDEX gone_until ON gone (until_ms);

CREATE TABLE grp (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        BIGINT NOT NULL,
    topic         BIGINT NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    settings      TEXT NOT NULL,
    paused        SMALLINT NOT NULL DEFAULT 0,
    created_at_ms BIGINT NOT NULL,
    UNIQUE (topic, name)
);

-- Appended, and the newest counts: with one idle snapshot held, a row that is updated for every claim is found ever slower.
CREATE TABLE cursor (
    partition   BIGINT NOT NULL,
    grp         BIGINT NOT NULL,
    n           BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    PRIMARY KEY (partition, grp, n)
);

-- A lease's id is its fencing epoch.
CREATE TABLE lease (
    id            BIGINT NOT NULL,
    tenant        BIGINT NOT NULL,
    partition     BIGINT NOT NULL,
    grp           BIGINT NOT NULL,
    due_at_ms     BIGINT NOT NULL,
    state         SMALLINT NOT NULL,
    consumer      TEXT COLLATE "C" NOT NULL,
    claimed_at_ms BIGINT NOT NULL,
    base          BIGINT NOT NULL,
    count         BIGINT NOT NULL,
    live          BIGINT NOT NULL,
    attempts      BIGINT NOT NULL,
    alone         SMALLINT NOT NULL,
    suspect       SMALLINT NOT NULL,
    marked        SMALLINT NOT NULL DEFAULT 0,
    offsets       BYTEA,
    settled       BYTEA,
    history       BYTEA,
    keys          BYTEA,
    PRIMARY KEY (partition, id)
);
CREATE INDEX lease_due ON lease (partition, grp, due_at_ms);

CREATE TABLE dead (
    tenant       BIGINT NOT NULL,
    partition    BIGINT NOT NULL,
    grp          BIGINT NOT NULL,
    "offset"     BIGINT NOT NULL,
    buried_at_ms BIGINT NOT NULL,
    attempts     BIGINT NOT NULL,
    reason       BYTEA NOT NULL,
    history      BYTEA,
    PRIMARY KEY (partition, grp, "offset")
);

CREATE TABLE consumer (
    tenant     BIGINT NOT NULL,
    grp        BIGINT NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    seen_at_ms BIGINT NOT NULL,
    PRIMARY KEY (grp, name)
);
CREATE INDEX consumer_by_name ON consumer (tenant, name);

-- Chores of the store itself.
CREATE TABLE agenda (
    id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chore     TEXT COLLATE "C" NOT NULL,
    due_at_ms BIGINT NOT NULL
);
CREATE INDEX agenda_due ON agenda (due_at_ms);

-- Events of a transaction, a JSON list, until they are packed into the tenant's log `$events`.
CREATE TABLE event (
    id     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant BIGINT NOT NULL,
    data   BYTEA NOT NULL
);

-- Queues: the sorted index over the log, and what fell out of it.

-- Appended, and the newest counts. positions: how far each run has been consumed.
CREATE TABLE queue (
    partition   BIGINT NOT NULL,
    n           BIGINT NOT NULL,
    absorbed_to BIGINT NOT NULL,
    taken       BYTEA NOT NULL,
    times       BYTEA NOT NULL,
    positions   BYTEA NOT NULL,
    PRIMARY KEY (partition, n)
);

CREATE TABLE run (
    id             BIGINT NOT NULL,
    partition      BIGINT NOT NULL,
    kind           BIGINT NOT NULL,
    level          BIGINT NOT NULL,
    count          BIGINT NOT NULL,
    pos            BIGINT NOT NULL,
    blocks         BIGINT NOT NULL,
    block          BIGINT NOT NULL,
    low            BIGINT NOT NULL,
    high           BIGINT NOT NULL,
    expires_max_ms BIGINT,
    target         BIGINT NOT NULL,
    plain          SMALLINT NOT NULL DEFAULT 0,
    sources        BYTEA,
    coming         BYTEA,
    PRIMARY KEY (partition, id)
);

CREATE TABLE run_block (
    partition BIGINT NOT NULL,
    run       BIGINT NOT NULL,
    idx       BIGINT NOT NULL,
    entries   BYTEA NOT NULL,
    PRIMARY KEY (partition, run, idx)
);

CREATE TABLE run_data (
    partition BIGINT NOT NULL,
    run       BIGINT NOT NULL,
    idx       BIGINT NOT NULL,
    data      BYTEA NOT NULL,
    PRIMARY KEY (partition, run, idx)
);

CREATE TABLE hole (
    partition BIGINT NOT NULL,
    run       BIGINT NOT NULL,
    seq       BIGINT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    late      SMALLINT NOT NULL,
    PRIMARY KEY (partition, run, seq)
);

CREATE TABLE loose (
    partition BIGINT NOT NULL,
    "offset"  BIGINT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    waits     SMALLINT NOT NULL,
    priority  BIGINT NOT NULL,
    lane      BIGINT NOT NULL,
    attempts  BIGINT NOT NULL,
    suspects  BIGINT NOT NULL,
    half      BIGINT NOT NULL,
    cancelled SMALLINT NOT NULL,
    slot      SMALLINT NOT NULL,
    history   BYTEA,
    PRIMARY KEY (partition, "offset")
);
CREATE INDEX loose_due ON loose (partition, due_at_ms) WHERE waits = 1;

CREATE TABLE id_run (
    id     BIGINT NOT NULL,
    topic  BIGINT NOT NULL,
    level  BIGINT NOT NULL,
    count  BIGINT NOT NULL,
    filter BYTEA NOT NULL,
    PRIMARY KEY (topic, id)
);

-- first: the upper 63 bits of the block's first hash.
CREATE TABLE id_block (
    topic BIGINT NOT NULL,
    run   BIGINT NOT NULL,
    idx   BIGINT NOT NULL,
    first BIGINT NOT NULL,
    data  BYTEA NOT NULL,
    PRIMARY KEY (topic, run, idx)
);

CREATE TABLE ids_to (
    partition  BIGINT PRIMARY KEY,
    indexed_to BIGINT NOT NULL
);

-- Messages that are settled, but whose ids may not be used again yet.
CREATE TABLE done (
    partition BIGINT NOT NULL,
    first     BIGINT NOT NULL,
    last      BIGINT NOT NULL,
    until_ms  BIGINT NOT NULL,
    PRIMARY KEY (partition, first)
);
CREATE INDEX done_until ON done (until_ms);

CREATE TABLE lane (
    partition  BIGINT NOT NULL,
    lane       BIGINT NOT NULL,
    in_flight  BIGINT NOT NULL,
    next_at_ms DOUBLE PRECISION NOT NULL,
    look_at_ms BIGINT,
    PRIMARY KEY (partition, lane)
);
CREATE INDEX lane_look ON lane (partition, look_at_ms) WHERE look_at_ms IS NOT NULL;

CREATE TABLE lane_wait (
    partition BIGINT NOT NULL,
    lane      BIGINT NOT NULL,
    priority  BIGINT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    "offset"  BIGINT NOT NULL,
    loose     SMALLINT NOT NULL,
    PRIMARY KEY (partition, lane, priority, due_at_ms, "offset")
);
CREATE INDEX lane_wait_by_offset ON lane_wait (partition, "offset");

-- Stages: messages that wait to be published together with others (engine/stage.py).

-- expires_at_ms is NULL once it was decided to publish it.
CREATE TABLE stage (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        BIGINT NOT NULL,
    topic         BIGINT NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    messages      BIGINT NOT NULL,
    next_number   BIGINT NOT NULL,
    expires_at_ms BIGINT,
    UNIQUE (tenant, topic, name)
);
CREATE INDEX stage_expires ON stage (expires_at_ms);

CREATE TABLE staged (
    tenant BIGINT NOT NULL,
    stage  BIGINT NOT NULL,
    number BIGINT NOT NULL,
    chunk  BIGINT NOT NULL,
    piece  BYTEA NOT NULL,
    PRIMARY KEY (stage, number)
);

-- The messages of a stage are written here at once, and not again when they are published.
CREATE TABLE chunk (
    id     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant BIGINT NOT NULL,
    data   BYTEA NOT NULL
);

-- Who publishes stages: the newest version that was decided, and how far it has come. stages is NULL once it is done.
CREATE TABLE job (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        BIGINT NOT NULL,
    topic         BIGINT NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    messages      BIGINT NOT NULL,
    duplicates    BIGINT NOT NULL,
    left_over     BIGINT NOT NULL,
    stages        BYTEA,
    expires_at_ms BIGINT NOT NULL,
    UNIQUE (tenant, topic, name)
);
CREATE INDEX job_under_way ON job (id) WHERE stages IS NOT NULL;
CREATE INDEX job_expires ON job (expires_at_ms);

-- Not compressed again on the way to the disk: that takes longer than all the rest.
ALTER TABLE block ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE kept ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE lease ALTER COLUMN offsets SET STORAGE EXTERNAL;
ALTER TABLE lease ALTER COLUMN settled SET STORAGE EXTERNAL;
ALTER TABLE lease ALTER COLUMN history SET STORAGE EXTERNAL;
ALTER TABLE lease ALTER COLUMN keys SET STORAGE EXTERNAL;
ALTER TABLE event ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE queue ALTER COLUMN taken SET STORAGE EXTERNAL;
ALTER TABLE queue ALTER COLUMN times SET STORAGE EXTERNAL;
ALTER TABLE queue ALTER COLUMN positions SET STORAGE EXTERNAL;
ALTER TABLE run ALTER COLUMN sources SET STORAGE EXTERNAL;
ALTER TABLE run ALTER COLUMN coming SET STORAGE EXTERNAL;
ALTER TABLE run_block ALTER COLUMN entries SET STORAGE EXTERNAL;
ALTER TABLE run_data ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE loose ALTER COLUMN history SET STORAGE EXTERNAL;
ALTER TABLE id_run ALTER COLUMN filter SET STORAGE EXTERNAL;
ALTER TABLE id_block ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE chunk ALTER COLUMN data SET STORAGE EXTERNAL;

-- What is written and deleted all the time is looked after as often: nobody should ever have to do it by hand.
ALTER TABLE turn SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);
ALTER TABLE cursor SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);
ALTER TABLE queue SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);
ALTER TABLE lease SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE event SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE inbox SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE agenda SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);

-- enter: what a transaction on a topic begins with, in one trip. Waits for the topic's lock, then looks: each statement of
-- such a function sees what was committed before it. `floor` is below the inbox's rows that may still come.
CREATE FUNCTION enter(
    space INTEGER, topic_id BIGINT, floor XID8,
    OUT now_us BIGINT, OUT n BIGINT, OUT session BIGINT, OUT next_id BIGINT, OUT definitions TEXT, OUT has_mail BOOLEAN
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(space, topic_id::INTEGER);
    SELECT t.n, t.session, t.next_id INTO n, session, next_id
      FROM turn AS t WHERE t.topic = topic_id ORDER BY t.n DESC LIMIT 1;
    SELECT m.value INTO definitions FROM meta AS m WHERE m.key = 'definitions';
    has_mail := EXISTS (SELECT 1 FROM inbox AS i WHERE i.topic = topic_id AND i.xid >= floor);
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT;
END
$$;

-- guard: the same for one that remembers how things stood, and has computed what follows from that: it is refused, with all
-- that was sent behind it, unless they stand so still.
CREATE FUNCTION guard(space INTEGER, topic_id BIGINT, at_n BIGINT, at_session BIGINT, at_definitions TEXT, floor XID8, at_ms BIGINT)
RETURNS VOID LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_ms       BIGINT;
    last_n       BIGINT;
    last_session BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock(space, topic_id::INTEGER);
    SELECT t.n, t.session INTO last_n, last_session
      FROM turn AS t WHERE t.topic = topic_id ORDER BY t.n DESC LIMIT 1;
    -- A time that was reckoned, and not read: never ahead of the store's, nor far behind it.
    now_ms := trunc(extract(epoch FROM clock_timestamp()) * 1000)::BIGINT;
    IF at_ms > now_ms OR at_ms < now_ms - 1000 OR last_n IS DISTINCT FROM at_n OR last_session IS DISTINCT FROM at_session
       OR (SELECT m.value FROM meta AS m WHERE m.key = 'definitions') IS DISTINCT FROM at_definitions
       OR EXISTS (SELECT 1 FROM inbox AS i WHERE i.topic = topic_id AND i.xid >= floor) THEN
        RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU001';
    END IF;
END
$$;

-- publish: for any language, a trigger, pg_cron. Part of the transaction that calls it; answers the message's id. Whoever may
-- call it needs no right on the tables: it runs as the schema's owner, and sees no tables but Duly's (the search path is
-- fixed below). What it lets through the taking in takes: its limits are those of limits.py.
CREATE FUNCTION publish(
    topic TEXT, payload BYTEA,
    key TEXT DEFAULT NULL, headers JSONB DEFAULT NULL, id TEXT DEFAULT NULL, due TIMESTAMPTZ DEFAULT NULL,
    priority INTEGER DEFAULT NULL, lane TEXT DEFAULT NULL, ttl INTERVAL DEFAULT NULL, expires_at TIMESTAMPTZ DEFAULT NULL,
    partition INTEGER DEFAULT NULL, publish_id TEXT DEFAULT NULL, tenant TEXT DEFAULT 'default'
) RETURNS TEXT LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    target   RECORD;
    drawn    TEXT := replace(gen_random_uuid()::TEXT, '-', '');
    made     TEXT := coalesce(publish.id, '@t' || drawn);
    due_ms   BIGINT;
    ends_ms  BIGINT;
    ttl_ms   BIGINT := (extract(epoch FROM publish.ttl) * 1000)::BIGINT;
    now_ms   BIGINT := (extract(epoch FROM clock_timestamp()) * 1000)::BIGINT;
    -- ttl_ms_max and due_ms_ahead_max.
    far_ms   CONSTANT BIGINT := 3653 * 86400000::BIGINT;
BEGIN
    SELECT t.id, t.settings::JSONB AS settings, (SELECT count(*) FROM part AS p WHERE p.topic = t.id) AS partitions
      INTO target
      FROM topic AS t JOIN tenant AS n ON n.id = t.tenant
     WHERE n.name = publish.tenant AND t.name = publish.topic AND left(t.name, 1) <> '$';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no topic %. Topics are never created by themselves.', quote_nullable(publish.topic)
              USING ERRCODE = 'undefined_object';
    END IF;
    IF publish.payload IS NULL THEN
        RAISE EXCEPTION 'The payload is NULL. Give bytes: convert_to(text, ''UTF8'').' USING ERRCODE = 'not_null_violation';
    END IF;
    IF octet_length(publish.payload) > (target.settings ->> 'payload_bytes_max')::BIGINT THEN
        RAISE EXCEPTION 'The payload has % bytes; topic % takes %.', octet_length(publish.payload), publish.topic,
              target.settings ->> 'payload_bytes_max' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF target.settings ->> 'kind' = 'log'
       AND (publish.due IS NOT NULL OR publish.priority IS NOT NULL OR publish.lane IS NOT NULL) THEN
        RAISE EXCEPTION 'due, priority and lane belong to queues; % is a log.', publish.topic
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF target.settings ->> 'kind' = 'queue' AND publish.partition IS NOT NULL THEN
        RAISE EXCEPTION 'partition belongs to logs; % is a queue, which spreads by lane.', publish.topic
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.partition NOT BETWEEN 0 AND target.partitions - 1 THEN
        RAISE EXCEPTION 'Topic % has % partitions, numbered from 0.', publish.topic, target.partitions
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.priority NOT BETWEEN 0 AND 65535 THEN
        RAISE EXCEPTION 'A priority is 0 to 65535; got %.', publish.priority USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF target.settings #>> '{lanes,max_in_flight}' = '1' AND publish.priority <> 0 THEN
        RAISE EXCEPTION 'The lanes of % run in order, one at a time: no priorities.', publish.topic
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.ttl IS NOT NULL AND publish.expires_at IS NOT NULL THEN
        RAISE EXCEPTION 'Give ttl or expires_at, not both.' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF ttl_ms NOT BETWEEN 1 AND far_ms THEN
        RAISE EXCEPTION 'A ttl is a millisecond to 3653 days; got %.', publish.ttl USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(publish.due) OR NOT isfinite(publish.expires_at) THEN
        RAISE EXCEPTION 'due and expires_at are moments; got infinity.' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    due_ms := greatest((extract(epoch FROM publish.due) * 1000)::BIGINT, CASE WHEN publish.due IS NOT NULL THEN 0 END);
    IF due_ms > now_ms + far_ms THEN
        RAISE EXCEPTION 'due is more than 3653 days ahead: %.', publish.due USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.id LIKE '@%' OR publish.id = '' OR octet_length(publish.id) > 512
       OR publish.key = '' OR octet_length(publish.key) > 1024
       OR publish.lane = '' OR length(publish.lane) > 256 OR publish.lane ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'An id has 1 to 512 bytes and does not begin with @, a key 1 to 1024 bytes, a lane 1 to 256 characters.'
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.publish_id LIKE '~%' OR publish.publish_id = '' OR length(publish.publish_id) > 128
       OR publish.publish_id ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'A publish_id has 1 to 128 printable characters and does not begin with ~.'
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(publish.headers) <> 'object' OR EXISTS (
           SELECT 1 FROM jsonb_each(CASE jsonb_typeof(publish.headers) WHEN 'object' THEN publish.headers END) AS h
            WHERE jsonb_typeof(h.value) <> 'string') THEN
        RAISE EXCEPTION 'headers is a JSON object of strings.' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (SELECT count(*) > 64 OR sum(octet_length(h.key) + octet_length(h.value)) > 16384
          FROM jsonb_each_text(publish.headers) AS h) THEN
        RAISE EXCEPTION 'A message has at most 64 headers, of 16384 bytes together.' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    ends_ms := CASE WHEN ttl_ms IS NULL THEN greatest((extract(epoch FROM publish.expires_at) * 1000)::BIGINT,
                                                       CASE WHEN publish.expires_at IS NOT NULL THEN 0 END)
                    ELSE greatest(coalesce(due_ms, now_ms), now_ms) + ttl_ms END;
    INSERT INTO inbox (topic, kind, data, payload)
    VALUES (target.id, 'sql', convert_to(jsonb_strip_nulls(jsonb_build_object(
                'id', made, 'publish_id', coalesce(publish.publish_id, '~' || lpad(to_hex(now_ms), 11, '0') || drawn),
                'key', publish.key, 'headers', publish.headers, 'lane', publish.lane, 'priority', publish.priority,
                'due_at', due_ms, 'expires_at', ends_ms, 'partition', publish.partition))::TEXT, 'UTF8'),
            publish.payload);
    RETURN made;
END
$$;
REVOKE ALL ON FUNCTION publish FROM PUBLIC;

-- The caller's temporary tables come last, where they hide none of Duly's: unnamed they would come first, and whoever may
-- call could have its own "inbox", with a trigger that runs as the schema's owner.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION publish SET search_path = %I, pg_temp', current_schema());
END
$$;
