-- The brokers that serve this file, and when each was last seen. What a broker tells of itself is JSON.
CREATE TABLE duly_member (
    name       TEXT NOT NULL PRIMARY KEY,
    seen_at_ms INTEGER NOT NULL,
    facts      TEXT NOT NULL
) WITHOUT ROWID;
