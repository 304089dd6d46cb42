-- What operations have published (engine/budget.py). id: a hash of the name; name: sealed where the tenant is encrypted.
-- At at_ms it had so many messages left; at rest from expires_at_ms on. held: stopped by hand.
CREATE TABLE duly_operation (
    tenant        INTEGER NOT NULL,
    id            INTEGER NOT NULL,
    name          BLOB NOT NULL,
    left_over     REAL NOT NULL,
    at_ms         INTEGER NOT NULL,
    published     INTEGER NOT NULL,
    stopped_at_ms INTEGER,
    held          INTEGER NOT NULL,
    expires_at_ms INTEGER,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
