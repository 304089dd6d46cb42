-- What limits a group's deliveries counts in one row (engine/gate.py): tokens, the credit of retries, its breaker.
CREATE TABLE duly_gate (
    tenant INTEGER NOT NULL,
    grp    INTEGER NOT NULL,
    state  BLOB NOT NULL,
    PRIMARY KEY (tenant, grp)
) WITHOUT ROWID;

-- A lane's breaker; circuit_state 0: it is closed.
ALTER TABLE duly_lane ADD COLUMN circuit BLOB;
ALTER TABLE duly_lane ADD COLUMN circuit_state INTEGER NOT NULL DEFAULT 0;
CREATE INDEX duly_lane_broken ON duly_lane (tenant, partition, lane) WHERE circuit_state > 0;

-- Where retries have a budget, what never failed must not wait behind those that have none left.
CREATE INDEX duly_loose_fresh ON duly_loose (tenant, partition, due_at_ms) WHERE waits = 1 AND attempts = 0;

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
