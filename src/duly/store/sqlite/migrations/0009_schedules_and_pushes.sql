-- Cron entries (engine/schedules.py). settings: what it publishes and when, as JSON, sealed where the tenant is encrypted.
-- next_at_ms: the tick that is next; NULL: it is paused, or never ticks again. look_at_ms: when somebody wants to look
-- at it, which is then, or later where that tick could not be published. state: its last runs, as JSON.
CREATE TABLE duly_schedule (
    tenant     INTEGER NOT NULL,
    name       TEXT NOT NULL,
    topic      INTEGER NOT NULL,
    settings   BLOB NOT NULL,
    paused     INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    next_at_ms INTEGER,
    look_at_ms INTEGER,
    state      BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE INDEX duly_schedule_look ON duly_schedule (look_at_ms) WHERE look_at_ms IS NOT NULL;
CREATE INDEX duly_schedule_topic ON duly_schedule (topic, look_at_ms);

-- Pushes (engine/pushes.py). settings: where to and how, as JSON, sealed where the tenant is encrypted. secrets: what its
-- requests are signed with and the values of their headers, sealed wherever the store has a master key. state: one of
-- push.py's, with a reason. target: the topic that it goes to. holder: the broker that runs it, by its name among
-- members; a row whose holder is gone is anybody's. stamp: another number with each change: their sum tells of any.
CREATE TABLE duly_push (
    tenant        INTEGER NOT NULL,
    name          TEXT NOT NULL,
    topic         INTEGER NOT NULL,
    grp           INTEGER NOT NULL,
    settings      BLOB NOT NULL,
    secrets       BLOB,
    state         TEXT NOT NULL,
    reason        TEXT NOT NULL,
    version       INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    target        INTEGER,
    holder        TEXT,
    stamp         INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE UNIQUE INDEX duly_push_group ON duly_push (grp);
CREATE INDEX duly_push_topic ON duly_push (topic);
CREATE INDEX duly_push_target ON duly_push (target) WHERE target IS NOT NULL;
CREATE INDEX duly_push_stamp ON duly_push (stamp);
