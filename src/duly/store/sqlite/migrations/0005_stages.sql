-- Stages: messages that wait to be published together with others (engine/stage.py).

-- expires_at_ms is NULL once it was decided to publish it.
CREATE TABLE duly_stage (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        INTEGER NOT NULL,
    topic         INTEGER NOT NULL,
    name          TEXT NOT NULL,
    messages      INTEGER NOT NULL,
    next_number   INTEGER NOT NULL,
    expires_at_ms INTEGER,
    UNIQUE (tenant, topic, name)
);
CREATE INDEX duly_stage_expires ON duly_stage (expires_at_ms);

CREATE TABLE duly_staged (
    tenant INTEGER NOT NULL,
    stage  INTEGER NOT NULL,
    number INTEGER NOT NULL,
    chunk  INTEGER NOT NULL,
    piece  BLOB NOT NULL,
    PRIMARY KEY (tenant, stage, number)
) WITHOUT ROWID;

-- The messages of a block, apart from it: written when they were staged, and not again when they were published.
CREATE TABLE duly_chunk (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL,
    data   BLOB NOT NULL
);

-- Which chunk the messages of a block lie in.
CREATE TABLE duly_apart (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    base      INTEGER NOT NULL,
    chunk     INTEGER NOT NULL,
    PRIMARY KEY (tenant, partition, base)
) WITHOUT ROWID;

-- Who publishes stages: the newest version that was decided, and how far it has come. stages is NULL once it is done.
CREATE TABLE duly_job (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant        INTEGER NOT NULL,
    topic         INTEGER NOT NULL,
    name          TEXT NOT NULL,
    version       INTEGER NOT NULL,
    messages      INTEGER NOT NULL,
    duplicates    INTEGER NOT NULL,
    left_over     INTEGER NOT NULL,
    stages        BLOB,
    expires_at_ms INTEGER NOT NULL,
    UNIQUE (tenant, topic, name)
);
CREATE INDEX duly_job_under_way ON duly_job (id) WHERE stages IS NOT NULL;
CREATE INDEX duly_job_expires ON duly_job (expires_at_ms);
