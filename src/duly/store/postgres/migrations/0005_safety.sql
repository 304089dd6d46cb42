-- Tenants with quotas, who may do what, what is wrapped under the master key, and what was done.

-- state: 0 active, 1 suspended, 2 being deleted. settings: quotas and encryption, JSON.
ALTER TABLE tenant ADD COLUMN state smallint NOT NULL DEFAULT 0;
ALTER TABLE tenant ADD COLUMN settings text NOT NULL DEFAULT '{}';
ALTER TABLE tenant ADD COLUMN version bigint NOT NULL DEFAULT 1;
ALTER TABLE tenant ADD COLUMN created_at_ms bigint NOT NULL DEFAULT 0;

-- Secrets of the store (tenant 0) and data keys of tenants, each wrapped under the master key. wrapped is NULL once it was
-- shredded: what was sealed with it cannot be read by anybody.
CREATE TABLE secret (
    tenant        bigint NOT NULL,
    version       bigint NOT NULL,
    wrapped       bytea,
    created_at_ms bigint NOT NULL,
    PRIMARY KEY (tenant, version)
);

-- Who may do what. tenant 0: the operators of the store. grants and certificates: JSON lists.
CREATE TABLE principal (
    tenant        bigint NOT NULL,
    name          text   NOT NULL,
    grants        text   NOT NULL,
    certificates  text   NOT NULL,
    version       bigint NOT NULL DEFAULT 1,
    created_at_ms bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- What a principal shows. mac: of the whole key, under the store's secret; the key itself is nowhere.
CREATE TABLE key (
    id            text   NOT NULL PRIMARY KEY,
    tenant        bigint NOT NULL,
    principal     text   NOT NULL,
    mac           bytea  NOT NULL,
    note          text   NOT NULL,
    created_at_ms bigint NOT NULL,
    expires_at_ms bigint,
    revoked_at_ms bigint,
    used_at_ms    bigint
);
CREATE INDEX key_of_principal ON key (tenant, principal);

-- Every denied and every administrative action, a chain a tenant: mac is of the entry and the mac before it.
CREATE TABLE audit (
    tenant bigint NOT NULL,
    n      bigint NOT NULL,
    at_ms  bigint NOT NULL,
    entry  bytea  NOT NULL,
    mac    bytea  NOT NULL,
    PRIMARY KEY (tenant, n)
);

-- Where each chain ends: without it, that its last rows were deleted could not be told. seal: a mac of the other columns.
CREATE TABLE audit_head (
    tenant bigint NOT NULL PRIMARY KEY,
    n      bigint NOT NULL,
    mac    bytea  NOT NULL,
    seal   bytea  NOT NULL
);

-- publish, as 0001_initial.sql made it, but for what is refused for its tenant: one that is encrypted or not active.
-- For any language, a trigger, pg_cron. Part of the transaction that calls it; answers the message's id. Whoever may call
-- it needs no right on the tables: it runs as the schema's owner, and sees no tables but Duly's (the search path is
-- fixed below). What it lets through the taking in takes: its limits are those of limits.py.
CREATE OR REPLACE FUNCTION publish(
    topic TEXT, payload BYTEA,
    key TEXT DEFAULT NULL, headers JSONB DEFAULT NULL, id TEXT DEFAULT NULL, due TIMESTAMPTZ DEFAULT NULL,
    priority INTEGER DEFAULT NULL, lane TEXT DEFAULT NULL, ttl INTERVAL DEFAULT NULL, expires_at TIMESTAMPTZ DEFAULT NULL,
    partition INTEGER DEFAULT NULL, publish_id TEXT DEFAULT NULL, tenant TEXT DEFAULT 'default'
) RETURNS TEXT LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    target   RECORD;
    drawn    TEXT := replace(gen_random_uuid()::TEXT, '-', '');
    made     TEXT := coalesce(publish.id, '@t' || drawn);
    due_ms   BIGINT;
    ends_ms  BIGINT;
    ttl_ms   BIGINT := (extract(epoch FROM publish.ttl) * 1000)::BIGINT;
    now_ms   BIGINT := (extract(epoch FROM clock_timestamp()) * 1000)::BIGINT;
    -- ttl_ms_max and due_ms_ahead_max.
    far_ms   CONSTANT BIGINT := 3653 * 86400000::BIGINT;
BEGIN
    SELECT t.id, t.settings::JSONB AS settings, (SELECT count(*) FROM part AS p WHERE p.topic = t.id) AS partitions,
           n.state, coalesce((n.settings::JSONB ->> 'encrypt')::BOOLEAN, false)
                    OR EXISTS (SELECT 1 FROM secret AS s WHERE s.tenant = n.id AND s.wrapped IS NULL) AS sealed
      INTO target
      FROM topic AS t JOIN tenant AS n ON n.id = t.tenant
     WHERE n.name = publish.tenant AND t.name = publish.topic AND left(t.name, 1) <> '$';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no topic %. Topics are never created by themselves.', quote_nullable(publish.topic)
              USING ERRCODE = 'undefined_object';
    END IF;
    IF target.sealed THEN
        RAISE EXCEPTION 'What % stores is encrypted, and SQL has no key: publish through a client of Duly''s, or a broker.',
              quote_nullable(publish.tenant) USING ERRCODE = 'feature_not_supported';
    END IF;
    IF target.state <> 0 THEN
        RAISE EXCEPTION 'The tenant % is suspended, or being deleted.', quote_nullable(publish.tenant)
              USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF publish.payload IS NULL THEN
        RAISE EXCEPTION 'The payload is NULL. Give bytes: convert_to(text, ''UTF8'').' USING ERRCODE = 'not_null_violation';
    END IF;
    IF octet_length(publish.payload) > (target.settings ->> 'payload_bytes_max')::BIGINT THEN
        RAISE EXCEPTION 'The payload has % bytes; topic % takes %.', octet_length(publish.payload), publish.topic,
              target.settings ->> 'payload_bytes_max' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF target.settings ->> 'kind' = 'log'
       AND (publish.due IS NOT NULL OR publish.priority IS NOT NULL OR publish.lane IS NOT NULL) THEN
        RAISE EXCEPTION 'due, priority and lane belong to queues; % is a log.', publish.topic
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF target.settings ->> 'kind' = 'queue' AND publish.partition IS NOT NULL THEN
        RAISE EXCEPTION 'partition belongs to logs; % is a queue, which spreads by lane.', publish.topic
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.partition NOT BETWEEN 0 AND target.partitions - 1 THEN
        RAISE EXCEPTION 'Topic % has % partitions, numbered from 0.', publish.topic, target.partitions
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.priority NOT BETWEEN 0 AND 65535 THEN
        RAISE EXCEPTION 'A priority is 0 to 65535; got %.', publish.priority USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF target.settings #>> '{lanes,max_in_flight}' = '1' AND publish.priority <> 0 THEN
        RAISE EXCEPTION 'The lanes of % run in order, one at a time: no priorities.', publish.topic
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.ttl IS NOT NULL AND publish.expires_at IS NOT NULL THEN
        RAISE EXCEPTION 'Give ttl or expires_at, not both.' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF ttl_ms NOT BETWEEN 1 AND far_ms THEN
        RAISE EXCEPTION 'A ttl is a millisecond to 3653 days; got %.', publish.ttl USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(publish.due) OR NOT isfinite(publish.expires_at) THEN
        RAISE EXCEPTION 'due and expires_at are moments; got infinity.' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    due_ms := greatest((extract(epoch FROM publish.due) * 1000)::BIGINT, CASE WHEN publish.due IS NOT NULL THEN 0 END);
    IF due_ms > now_ms + far_ms THEN
        RAISE EXCEPTION 'due is more than 3653 days ahead: %.', publish.due USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.id LIKE '@%' OR publish.id = '' OR octet_length(publish.id) > 512
       OR publish.key = '' OR octet_length(publish.key) > 1024
       OR publish.lane = '' OR length(publish.lane) > 256 OR publish.lane ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'An id has 1 to 512 bytes and does not begin with @, a key 1 to 1024 bytes, a lane 1 to 256 characters.'
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.publish_id LIKE '~%' OR publish.publish_id = '' OR length(publish.publish_id) > 128
       OR publish.publish_id ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'A publish_id has 1 to 128 printable characters and does not begin with ~.'
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(publish.headers) <> 'object' OR EXISTS (
           SELECT 1 FROM jsonb_each(CASE jsonb_typeof(publish.headers) WHEN 'object' THEN publish.headers END) AS h
            WHERE jsonb_typeof(h.value) <> 'string') THEN
        RAISE EXCEPTION 'headers is a JSON object of strings.' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (SELECT count(*) > 64 OR sum(octet_length(h.key) + octet_length(h.value)) > 16384
          FROM jsonb_each_text(publish.headers) AS h) THEN
        RAISE EXCEPTION 'A message has at most 64 headers, of 16384 bytes together.' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    ends_ms := CASE WHEN ttl_ms IS NULL THEN greatest((extract(epoch FROM publish.expires_at) * 1000)::BIGINT,
                                                       CASE WHEN publish.expires_at IS NOT NULL THEN 0 END)
                    ELSE greatest(coalesce(due_ms, now_ms), now_ms) + ttl_ms END;
    INSERT INTO inbox (topic, kind, data, payload)
    VALUES (target.id, 'sql', convert_to(jsonb_strip_nulls(jsonb_build_object(
                'id', made, 'publish_id', coalesce(publish.publish_id, '~' || lpad(to_hex(now_ms), 11, '0') || drawn),
                'key', publish.key, 'headers', publish.headers, 'lane', publish.lane, 'priority', publish.priority,
                'due_at', due_ms, 'expires_at', ends_ms, 'partition', publish.partition))::TEXT, 'UTF8'),
            publish.payload);
    RETURN made;
END
$$;

-- A function that is replaced loses its search path; who may call it stays.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION publish SET search_path = %I, pg_temp', current_schema());
END
$$;
