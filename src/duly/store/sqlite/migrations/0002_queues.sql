-- Queues: the sorted index over the log, and what fell out of it.

ALTER TABLE duly_lease ADD COLUMN keys BLOB;
ALTER TABLE duly_lease ADD COLUMN marked INTEGER NOT NULL DEFAULT 0;

CREATE TABLE duly_queue (
    tenant      INTEGER NOT NULL,
    partition   INTEGER NOT NULL,
    absorbed_to INTEGER NOT NULL,
    taken       BLOB NOT NULL,
    times       BLOB NOT NULL,
    PRIMARY KEY (tenant, partition)
) WITHOUT ROWID;

CREATE TABLE duly_run (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant         INTEGER NOT NULL,
    partition      INTEGER NOT NULL,
    kind           INTEGER NOT NULL,
    level          INTEGER NOT NULL,
    count          INTEGER NOT NULL,
    pos            INTEGER NOT NULL,
    blocks         INTEGER NOT NULL,
    block          INTEGER NOT NULL,
    low            INTEGER NOT NULL,
    high           INTEGER NOT NULL,
    expires_max_ms INTEGER,
    sources        BLOB,
    target         INTEGER NOT NULL,
    coming         BLOB
);
CREATE INDEX duly_run_of_part ON duly_run (tenant, partition);

-- The entries first: they are read far more often than the messages behind them.
CREATE TABLE duly_run_block (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    run       INTEGER NOT NULL,
    idx       INTEGER NOT NULL,
    entries   BLOB NOT NULL,
    PRIMARY KEY (tenant, partition, run, idx)
) WITHOUT ROWID;

CREATE TABLE duly_run_data (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    run       INTEGER NOT NULL,
    idx       INTEGER NOT NULL,
    data      BLOB NOT NULL,
    PRIMARY KEY (tenant, partition, run, idx)
) WITHOUT ROWID;

CREATE TABLE duly_hole (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    run       INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    due_at_ms INTEGER NOT NULL,
    late      INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition, run, seq)
) WITHOUT ROWID;

CREATE TABLE duly_loose (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    "offset"  INTEGER NOT NULL,
    due_at_ms INTEGER NOT NULL,
    waits     INTEGER NOT NULL,
    priority  INTEGER NOT NULL,
    lane      INTEGER NOT NULL,
    attempts  INTEGER NOT NULL,
    suspects  INTEGER NOT NULL,
    half      INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    history   BLOB,
    slot      INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition, "offset")
) WITHOUT ROWID;
CREATE INDEX duly_loose_due ON duly_loose (tenant, partition, due_at_ms) WHERE waits = 1;

CREATE TABLE duly_id_run (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL,
    topic  INTEGER NOT NULL,
    level  INTEGER NOT NULL,
    count  INTEGER NOT NULL,
    filter BLOB NOT NULL
);
CREATE INDEX duly_id_run_of_topic ON duly_id_run (tenant, topic);

-- first: the upper 63 bits of the block's first hash.
CREATE TABLE duly_id_block (
    tenant INTEGER NOT NULL,
    topic  INTEGER NOT NULL,
    run    INTEGER NOT NULL,
    idx    INTEGER NOT NULL,
    first  INTEGER NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (tenant, topic, run, idx)
) WITHOUT ROWID;

CREATE TABLE duly_ids_to (
    tenant     INTEGER NOT NULL,
    partition  INTEGER NOT NULL,
    indexed_to INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition)
) WITHOUT ROWID;

-- Messages that are settled, but whose ids may not be used again yet.
CREATE TABLE duly_done (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    first     INTEGER NOT NULL,
    last      INTEGER NOT NULL,
    until_ms  INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition, first)
) WITHOUT ROWID;
CREATE INDEX duly_done_until ON duly_done (until_ms);

CREATE TABLE duly_lane (
    tenant     INTEGER NOT NULL,
    partition  INTEGER NOT NULL,
    lane       INTEGER NOT NULL,
    in_flight  INTEGER NOT NULL,
    next_at_ms REAL NOT NULL,
    look_at_ms INTEGER,
    PRIMARY KEY (tenant, partition, lane)
) WITHOUT ROWID;
CREATE INDEX duly_lane_look ON duly_lane (tenant, partition, look_at_ms) WHERE look_at_ms IS NOT NULL;

CREATE TABLE duly_lane_wait (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    lane      INTEGER NOT NULL,
    priority  INTEGER NOT NULL,
    due_at_ms INTEGER NOT NULL,
    "offset"  INTEGER NOT NULL,
    loose     INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition, lane, priority, due_at_ms, "offset")
) WITHOUT ROWID;
CREATE INDEX duly_lane_wait_by_offset ON duly_lane_wait (tenant, partition, "offset");
