-- Events of a transaction, a JSON list, until they are packed into the tenant's log `$events`.
CREATE TABLE duly_event (
    id     INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    data   BLOB NOT NULL
);

-- Whether all messages of a run are in the default lane: such a run needs no tags when it falls due.
ALTER TABLE duly_run ADD COLUMN plain INTEGER NOT NULL DEFAULT 0;
