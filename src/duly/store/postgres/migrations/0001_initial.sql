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

-- A lease's id is its fencing epoch. pledged: an application's transaction that has committed settled some of it, and the
-- next to have the turn will see to that.
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
    pledged       SMALLINT NOT NULL DEFAULT 0,
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

-- What is big is not compressed again: what is worth it has been. (CREATE TABLE takes no STORAGE before PostgreSQL 16.)
ALTER TABLE block ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE kept ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE lease ALTER COLUMN offsets SET STORAGE EXTERNAL, ALTER COLUMN settled SET STORAGE EXTERNAL, ALTER COLUMN history SET STORAGE EXTERNAL, ALTER COLUMN keys SET STORAGE EXTERNAL;
ALTER TABLE event ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE queue ALTER COLUMN taken SET STORAGE EXTERNAL, ALTER COLUMN times SET STORAGE EXTERNAL, ALTER COLUMN positions SET STORAGE EXTERNAL;
ALTER TABLE run ALTER COLUMN sources SET STORAGE EXTERNAL, ALTER COLUMN coming SET STORAGE EXTERNAL;
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
