-- Cron entries (engine/schedules.py). settings: what it publishes and when, as JSON, sealed where the tenant is encrypted.
-- next_at_ms: the tick that is next; NULL: it is paused, or never ticks again. look_at_ms: when somebody wants to look
-- at it, which is then, or later where that tick could not be published. state: its last runs, as JSON.
CREATE TABLE schedule (
    tenant     bigint NOT NULL,
    name       text NOT NULL,
    topic      bigint NOT NULL,
    settings   bytea NOT NULL,
    paused     smallint NOT NULL,
    version    bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    next_at_ms bigint,
    look_at_ms bigint,
    state      bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX schedule_look ON schedule (look_at_ms) WHERE look_at_ms IS NOT NULL;
CREATE INDEX schedule_topic ON schedule (topic, look_at_ms);

-- Pushes (engine/pushes.py). settings: where to and how, as JSON, sealed where the tenant is encrypted. secrets: what its
-- requests are signed with and the values of their headers, sealed wherever the store has a master key. state: one of
-- push.py's, with a reason. target: the topic that it goes to. holder: the broker that runs it, by its name among
-- members; a row whose holder is gone is anybody's. stamp: another number with each change: their sum tells of any.
CREATE TABLE push (
    tenant        bigint NOT NULL,
    name          text NOT NULL,
    topic         bigint NOT NULL,
    grp           bigint NOT NULL,
    settings      bytea NOT NULL,
    secrets       bytea,
    state         text NOT NULL,
    reason        text NOT NULL,
    version       bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    target        bigint,
    holder        text,
    stamp         bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE UNIQUE INDEX push_group ON push (grp);
CREATE INDEX push_topic ON push (topic);
CREATE INDEX push_target ON push (target) WHERE target IS NOT NULL;
CREATE INDEX push_stamp ON push (stamp);
