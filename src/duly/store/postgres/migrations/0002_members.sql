-- The brokers that serve this store, and when each was last seen. What a broker tells of itself is JSON.
-- Each row is written again every two seconds: room in its page keeps the index out of it.
CREATE TABLE member (
    name       text   NOT NULL PRIMARY KEY,
    seen_at_ms bigint NOT NULL,
    facts      text   NOT NULL
) WITH (fillfactor = 50);
