-- What limits a group's deliveries counts in one row (engine/gate.py): tokens, the credit of retries, its breaker. It changes
-- with every claim, so the newest is appended and the one before it deleted.
CREATE TABLE gate (
    grp   BIGINT NOT NULL,
    n     BIGINT NOT NULL,
    state BYTEA NOT NULL,
    PRIMARY KEY (grp, n)
);
ALTER TABLE gate SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.0);

-- A lane's breaker; circuit_state 0: it is closed.
ALTER TABLE lane ADD COLUMN circuit BYTEA;
ALTER TABLE lane ADD COLUMN circuit_state BIGINT NOT NULL DEFAULT 0;
CREATE INDEX lane_broken ON lane (partition, lane) WHERE circuit_state > 0;

-- Where retries have a budget, what never failed must not wait behind those that have none left.
CREATE INDEX loose_fresh ON loose (partition, due_at_ms) WHERE waits = 1 AND attempts = 0;
