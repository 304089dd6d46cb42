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

-- What is long of a block, so that the blocks themselves are short: SQLite reads a key's whole row wherever it compares
-- one. The messages of a stage are written here at once, and not again when they are published.
CREATE TABLE duly_chunk (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL,
    data   BLOB NOT NULL
);

-- Where the rest of it lies: all of it if there is no data, else its messages. NULL: the data is all.
ALTER TABLE duly_block ADD COLUMN chunk INTEGER;

-- Where archiving was turned on: below it a queue may have lost what it had settled.
ALTER TABLE duly_part ADD COLUMN archive_from INTEGER NOT NULL DEFAULT 0;

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
