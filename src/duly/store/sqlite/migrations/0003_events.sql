-- Events of a transaction, a JSON list, until they are packed into the tenant's log `$events`.
CREATE TABLE duly_event (
    id     INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    data   BLOB NOT NULL
);
