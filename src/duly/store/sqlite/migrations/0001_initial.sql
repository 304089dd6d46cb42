-- The first schema. Tenant and partition lead every key of what grows; ids are never reused.

CREATE TABLE duly_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE duly_tenant (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE duly_topic (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        INTEGER NOT NULL,
    name          TEXT NOT NULL,
    settings      TEXT NOT NULL,
    paused        INTEGER NOT NULL DEFAULT 0,
    version       INTEGER NOT NULL DEFAULT 1,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (tenant, name)
);

-- topic is NULL once the topic is deleted and the partition waits to be erased.
-- next_offset is a floor: the newest block says where the log really ends.
-- look_at_ms: when a chore wants to look at it; NULL while there is nothing to do.
CREATE TABLE duly_part (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant          INTEGER NOT NULL,
    topic           INTEGER,
    number          INTEGER NOT NULL,
    first_offset    INTEGER NOT NULL DEFAULT 0,
    next_offset     INTEGER NOT NULL DEFAULT 0,
    published_at_ms INTEGER NOT NULL DEFAULT 0,
    archived_to     INTEGER NOT NULL DEFAULT 0,
    look_at_ms      INTEGER
);
CREATE INDEX duly_part_look ON duly_part (look_at_ms) WHERE look_at_ms IS NOT NULL;
CREATE INDEX duly_part_of_topic ON duly_part (topic, number);

-- data comes last: reading what stands before it does not touch its overflow pages.
CREATE TABLE duly_block (
    tenant          INTEGER NOT NULL,
    partition       INTEGER NOT NULL,
    base            INTEGER NOT NULL,
    count           INTEGER NOT NULL,
    bytes           INTEGER NOT NULL,
    published_at_ms INTEGER NOT NULL,
    data            BLOB NOT NULL,
    PRIMARY KEY (tenant, partition, base)
) WITHOUT ROWID;

CREATE TABLE duly_kept (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    "offset"  INTEGER NOT NULL,
    data      BLOB NOT NULL,
    PRIMARY KEY (tenant, partition, "offset")
) WITHOUT ROWID;

CREATE TABLE duly_receipt (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        INTEGER NOT NULL,
    topic         INTEGER NOT NULL,
    publish_id    TEXT NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    receipt       BLOB NOT NULL,
    UNIQUE (tenant, topic, publish_id)
);

CREATE TABLE duly_grp (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        INTEGER NOT NULL,
    topic         INTEGER NOT NULL,
    name          TEXT NOT NULL,
    settings      TEXT NOT NULL,
    paused        INTEGER NOT NULL DEFAULT 0,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (topic, name)
);

CREATE TABLE duly_cursor (
    tenant      INTEGER NOT NULL,
    partition   INTEGER NOT NULL,
    grp         INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition, grp)
) WITHOUT ROWID;

-- A lease's id is its fencing epoch.
CREATE TABLE duly_lease (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        INTEGER NOT NULL,
    partition     INTEGER NOT NULL,
    grp           INTEGER NOT NULL,
    due_at_ms     INTEGER NOT NULL,
    state         INTEGER NOT NULL,
    consumer      TEXT NOT NULL,
    claimed_at_ms INTEGER NOT NULL,
    base          INTEGER NOT NULL,
    count         INTEGER NOT NULL,
    live          INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    alone         INTEGER NOT NULL,
    suspect       INTEGER NOT NULL,
    offsets       BLOB,
    settled       BLOB,
    history       BLOB
);
CREATE INDEX duly_lease_due ON duly_lease (tenant, partition, grp, due_at_ms);

CREATE TABLE duly_dead (
    tenant       INTEGER NOT NULL,
    partition    INTEGER NOT NULL,
    grp          INTEGER NOT NULL,
    "offset"     INTEGER NOT NULL,
    buried_at_ms INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    history      BLOB,
    PRIMARY KEY (tenant, partition, grp, "offset")
) WITHOUT ROWID;

CREATE TABLE duly_consumer (
    tenant     INTEGER NOT NULL,
    grp        INTEGER NOT NULL,
    name       TEXT NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, grp)
) WITHOUT ROWID;
CREATE INDEX duly_consumer_of_group ON duly_consumer (tenant, grp);

-- Chores of the store itself.
CREATE TABLE duly_agenda (
    chore     TEXT PRIMARY KEY,
    due_at_ms INTEGER NOT NULL
) WITHOUT ROWID;
