SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA frozen;
CREATE FUNCTION frozen.end_leases(of_partition bigint, ended bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    one BIGINT;
BEGIN
    FOREACH one IN ARRAY ended LOOP
        DELETE FROM lease WHERE partition = of_partition AND id = one;
    END LOOP;
END
$$;
CREATE FUNCTION frozen.enter(space integer, topic_id bigint, floor xid8, OUT now_us bigint, OUT n bigint, OUT session bigint, OUT next_id bigint, OUT definitions text, OUT has_mail boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(space, topic_id::INTEGER);
    SELECT t.n, t.session, t.next_id INTO n, session, next_id
      FROM turn AS t WHERE t.topic = topic_id ORDER BY t.n DESC LIMIT 1;
    SELECT m.value INTO definitions FROM meta AS m WHERE m.key = 'definitions';
    has_mail := EXISTS (SELECT 1 FROM inbox AS i WHERE i.topic = topic_id AND i.xid >= floor);
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT;
END
$$;
CREATE FUNCTION frozen.guard(space integer, topic_id bigint, at_n bigint, at_session bigint, at_definitions text, floor xid8, at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    now_ms       BIGINT;
    last_n       BIGINT;
    last_session BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock(space, topic_id::INTEGER);
    SELECT t.n, t.session INTO last_n, last_session
      FROM turn AS t WHERE t.topic = topic_id ORDER BY t.n DESC LIMIT 1;
    -- A time that was reckoned, and not read: never ahead of the store's, nor far behind it.
    now_ms := trunc(extract(epoch FROM clock_timestamp()) * 1000)::BIGINT;
    IF at_ms > now_ms OR at_ms < now_ms - 1000 OR last_n IS DISTINCT FROM at_n OR last_session IS DISTINCT FROM at_session
       OR (SELECT m.value FROM meta AS m WHERE m.key = 'definitions') IS DISTINCT FROM at_definitions
       OR EXISTS (SELECT 1 FROM inbox AS i WHERE i.topic = topic_id AND i.xid >= floor) THEN
        RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU001';
    END IF;
END
$$;
CREATE FUNCTION frozen.own_leases(of_partition bigint, wanted bigint[], topic_id bigint, floor xid8) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    one BIGINT;
    had BIGINT := 0;
BEGIN
    -- One by one: for several at once all of a partition are read, dead ones, too, because few are expected to be there.
    FOREACH one IN ARRAY wanted LOOP
        PERFORM 1 FROM lease WHERE partition = of_partition AND id = one FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            had := had + 1;
        END IF;
    END LOOP;
    IF had <> cardinality(wanted)
       OR EXISTS (SELECT 1 FROM inbox AS i
                   WHERE i.topic = topic_id AND i.xid >= floor AND i.kind = 'settle'
                     AND (i.leases IS NULL OR i.leases && wanted)) THEN
        RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU002';
    END IF;
END
$$;
CREATE FUNCTION frozen.own_leases_as(of_partition bigint, wanted bigint[], lives bigint[], marks bigint[], topic_id bigint, floor xid8) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    -- One by one: for several at once all of a partition are read, dead ones, too, because few are expected to be there.
    FOR at IN 1 .. cardinality(wanted) LOOP
        PERFORM 1
           FROM lease
          WHERE partition = of_partition
            AND id = wanted[at]
            AND live = lives[at]
            AND marked = marks[at]
            FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU002';
        END IF;
    END LOOP;
    IF EXISTS (SELECT 1
                 FROM inbox AS i
                WHERE i.topic = topic_id
                  AND i.xid >= floor
                  AND i.kind = 'settle'
                  AND (i.leases IS NULL OR i.leases && wanted)) THEN
        RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU002';
    END IF;
END
$$;
CREATE FUNCTION frozen.publish(topic text, payload bytea, key text DEFAULT NULL::text, headers jsonb DEFAULT NULL::jsonb, id text DEFAULT NULL::text, due timestamp with time zone DEFAULT NULL::timestamp with time zone, priority integer DEFAULT NULL::integer, lane text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, partition integer DEFAULT NULL::integer, publish_id text DEFAULT NULL::text, tenant text DEFAULT 'default'::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'frozen', 'pg_temp'
    AS $_$
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
$_$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE frozen.agenda (
    id bigint NOT NULL,
    chore text NOT NULL COLLATE pg_catalog."C",
    due_at_ms bigint NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.0');
ALTER TABLE frozen.agenda ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.agenda_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.audit (
    tenant bigint NOT NULL,
    n bigint NOT NULL,
    at_ms bigint NOT NULL,
    entry bytea NOT NULL,
    mac bytea NOT NULL
);
CREATE TABLE frozen.audit_head (
    tenant bigint NOT NULL,
    n bigint NOT NULL,
    mac bytea NOT NULL,
    seal bytea NOT NULL
);
CREATE TABLE frozen.block (
    partition bigint NOT NULL,
    base bigint NOT NULL,
    count bigint NOT NULL,
    bytes bigint NOT NULL,
    published_at_ms bigint NOT NULL,
    chunk bigint,
    data bytea NOT NULL
);
ALTER TABLE ONLY frozen.block ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE frozen.chunk (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY frozen.chunk ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE frozen.chunk ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.chunk_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.consumer (
    tenant bigint NOT NULL,
    grp bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    seen_at_ms bigint NOT NULL
);
CREATE TABLE frozen.cursor (
    partition bigint NOT NULL,
    grp bigint NOT NULL,
    n bigint NOT NULL,
    next_offset bigint NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.0');
CREATE TABLE frozen.dead (
    tenant bigint NOT NULL,
    partition bigint NOT NULL,
    grp bigint NOT NULL,
    "offset" bigint NOT NULL,
    buried_at_ms bigint NOT NULL,
    attempts bigint NOT NULL,
    reason bytea NOT NULL,
    history bytea
);
CREATE TABLE frozen.done (
    partition bigint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    until_ms bigint NOT NULL
);
CREATE TABLE frozen.event (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    data bytea NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE ONLY frozen.event ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE frozen.event ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.gate (
    grp bigint NOT NULL,
    n bigint NOT NULL,
    state bytea NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.0');
CREATE TABLE frozen.gone (
    partition bigint NOT NULL,
    base bigint NOT NULL,
    until_ms bigint NOT NULL,
    publishes bytea NOT NULL
);
CREATE TABLE frozen.grp (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    topic bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    settings text NOT NULL,
    paused smallint DEFAULT 0 NOT NULL,
    created_at_ms bigint NOT NULL
);
ALTER TABLE frozen.grp ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.grp_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.hole (
    partition bigint NOT NULL,
    run bigint NOT NULL,
    seq bigint NOT NULL,
    due_at_ms bigint NOT NULL,
    late smallint NOT NULL
);
CREATE TABLE frozen.id_block (
    topic bigint NOT NULL,
    run bigint NOT NULL,
    idx bigint NOT NULL,
    first bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY frozen.id_block ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE frozen.id_run (
    id bigint NOT NULL,
    topic bigint NOT NULL,
    level bigint NOT NULL,
    count bigint NOT NULL,
    filter bytea NOT NULL
);
ALTER TABLE ONLY frozen.id_run ALTER COLUMN filter SET STORAGE EXTERNAL;
CREATE SEQUENCE frozen.ids_by_thousand
    START WITH 1000
    INCREMENT BY 1000
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE frozen.ids_to (
    partition bigint NOT NULL,
    indexed_to bigint NOT NULL
);
CREATE TABLE frozen.inbox (
    topic bigint NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    id bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL,
    payload bytea,
    leases bigint[]
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE frozen.inbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.inbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.job (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    topic bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    messages bigint NOT NULL,
    duplicates bigint NOT NULL,
    left_over bigint NOT NULL,
    stages bytea,
    expires_at_ms bigint NOT NULL
);
ALTER TABLE frozen.job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.kept (
    partition bigint NOT NULL,
    "offset" bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY frozen.kept ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE frozen.key (
    id text NOT NULL,
    tenant bigint NOT NULL,
    principal text NOT NULL,
    mac bytea NOT NULL,
    note text NOT NULL,
    created_at_ms bigint NOT NULL,
    expires_at_ms bigint,
    revoked_at_ms bigint,
    used_at_ms bigint
);
CREATE TABLE frozen.lane (
    partition bigint NOT NULL,
    lane bigint NOT NULL,
    in_flight bigint NOT NULL,
    next_at_ms double precision NOT NULL,
    look_at_ms bigint,
    circuit bytea,
    circuit_state bigint DEFAULT 0 NOT NULL
);
CREATE TABLE frozen.lane_wait (
    partition bigint NOT NULL,
    lane bigint NOT NULL,
    priority bigint NOT NULL,
    due_at_ms bigint NOT NULL,
    "offset" bigint NOT NULL,
    loose smallint NOT NULL
);
CREATE TABLE frozen.lease (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    partition bigint NOT NULL,
    grp bigint NOT NULL,
    due_at_ms bigint NOT NULL,
    state smallint NOT NULL,
    consumer text NOT NULL COLLATE pg_catalog."C",
    claimed_at_ms bigint NOT NULL,
    base bigint NOT NULL,
    count bigint NOT NULL,
    live bigint NOT NULL,
    attempts bigint NOT NULL,
    alone smallint NOT NULL,
    suspect smallint NOT NULL,
    marked smallint DEFAULT 0 NOT NULL,
    offsets bytea,
    settled bytea,
    history bytea,
    keys bytea
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE ONLY frozen.lease ALTER COLUMN offsets SET STORAGE EXTERNAL;
ALTER TABLE ONLY frozen.lease ALTER COLUMN settled SET STORAGE EXTERNAL;
ALTER TABLE ONLY frozen.lease ALTER COLUMN history SET STORAGE EXTERNAL;
ALTER TABLE ONLY frozen.lease ALTER COLUMN keys SET STORAGE EXTERNAL;
CREATE TABLE frozen.loose (
    partition bigint NOT NULL,
    "offset" bigint NOT NULL,
    due_at_ms bigint NOT NULL,
    waits smallint NOT NULL,
    priority bigint NOT NULL,
    lane bigint NOT NULL,
    attempts bigint NOT NULL,
    suspects bigint NOT NULL,
    half bigint NOT NULL,
    cancelled smallint NOT NULL,
    slot smallint NOT NULL,
    history bytea
);
ALTER TABLE ONLY frozen.loose ALTER COLUMN history SET STORAGE EXTERNAL;
CREATE TABLE frozen.member (
    name text NOT NULL,
    seen_at_ms bigint NOT NULL,
    facts text NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE frozen.meta (
    key text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);
CREATE TABLE frozen.operation (
    tenant bigint NOT NULL,
    id bigint NOT NULL,
    name bytea NOT NULL,
    left_over double precision NOT NULL,
    at_ms bigint NOT NULL,
    published bigint NOT NULL,
    stopped_at_ms bigint,
    held smallint NOT NULL,
    expires_at_ms bigint
)
WITH (fillfactor='70');
CREATE TABLE frozen.part (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    topic bigint,
    number bigint NOT NULL,
    first_offset bigint DEFAULT 0 NOT NULL,
    next_offset bigint DEFAULT 0 NOT NULL,
    published_at_ms bigint DEFAULT 0 NOT NULL,
    archived_to bigint DEFAULT 0 NOT NULL,
    archive_from bigint DEFAULT 0 NOT NULL,
    look_at_ms bigint
);
ALTER TABLE frozen.part ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.part_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.principal (
    tenant bigint NOT NULL,
    name text NOT NULL,
    grants text NOT NULL,
    certificates text NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    created_at_ms bigint NOT NULL
);
CREATE TABLE frozen.push (
    tenant bigint NOT NULL,
    name text NOT NULL,
    topic bigint NOT NULL,
    grp bigint NOT NULL,
    settings bytea NOT NULL,
    secrets bytea,
    state text NOT NULL,
    reason text NOT NULL,
    version bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    target bigint,
    holder text,
    stamp bigint NOT NULL
);
CREATE TABLE frozen.queue (
    partition bigint NOT NULL,
    n bigint NOT NULL,
    absorbed_to bigint NOT NULL,
    taken bytea NOT NULL,
    times bytea NOT NULL,
    positions bytea NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.0');
ALTER TABLE ONLY frozen.queue ALTER COLUMN taken SET STORAGE EXTERNAL;
ALTER TABLE ONLY frozen.queue ALTER COLUMN times SET STORAGE EXTERNAL;
ALTER TABLE ONLY frozen.queue ALTER COLUMN positions SET STORAGE EXTERNAL;
CREATE TABLE frozen.receipt (
    topic bigint NOT NULL,
    publish_id text NOT NULL COLLATE pg_catalog."C",
    expires_at_ms bigint NOT NULL,
    receipt bytea NOT NULL
);
CREATE TABLE frozen.refused (
    id bigint NOT NULL,
    topic bigint NOT NULL,
    at_ms bigint NOT NULL,
    why text NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL,
    payload bytea
);
ALTER TABLE frozen.refused ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.refused_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.run (
    id bigint NOT NULL,
    partition bigint NOT NULL,
    kind bigint NOT NULL,
    level bigint NOT NULL,
    count bigint NOT NULL,
    pos bigint NOT NULL,
    blocks bigint NOT NULL,
    block bigint NOT NULL,
    low bigint NOT NULL,
    high bigint NOT NULL,
    expires_max_ms bigint,
    target bigint NOT NULL,
    plain smallint DEFAULT 0 NOT NULL,
    sources bytea,
    coming bytea
);
ALTER TABLE ONLY frozen.run ALTER COLUMN sources SET STORAGE EXTERNAL;
ALTER TABLE ONLY frozen.run ALTER COLUMN coming SET STORAGE EXTERNAL;
CREATE TABLE frozen.run_block (
    partition bigint NOT NULL,
    run bigint NOT NULL,
    idx bigint NOT NULL,
    entries bytea NOT NULL
);
ALTER TABLE ONLY frozen.run_block ALTER COLUMN entries SET STORAGE EXTERNAL;
CREATE TABLE frozen.run_data (
    partition bigint NOT NULL,
    run bigint NOT NULL,
    idx bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY frozen.run_data ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE frozen.schedule (
    tenant bigint NOT NULL,
    name text NOT NULL,
    topic bigint NOT NULL,
    settings bytea NOT NULL,
    paused smallint NOT NULL,
    version bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    next_at_ms bigint,
    look_at_ms bigint,
    state bytea NOT NULL
);
CREATE TABLE frozen.secret (
    tenant bigint NOT NULL,
    version bigint NOT NULL,
    wrapped bytea,
    created_at_ms bigint NOT NULL
);
CREATE TABLE frozen.stage (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    topic bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    messages bigint NOT NULL,
    next_number bigint NOT NULL,
    expires_at_ms bigint
);
ALTER TABLE frozen.stage ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.stage_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.staged (
    tenant bigint NOT NULL,
    stage bigint NOT NULL,
    number bigint NOT NULL,
    chunk bigint NOT NULL,
    piece bytea NOT NULL
);
CREATE TABLE frozen.tenant (
    id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    state smallint DEFAULT 0 NOT NULL,
    settings text DEFAULT '{}'::text NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    created_at_ms bigint DEFAULT 0 NOT NULL
);
ALTER TABLE frozen.tenant ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.tenant_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.topic (
    id bigint NOT NULL,
    tenant bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    settings text NOT NULL,
    paused smallint DEFAULT 0 NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    created_at_ms bigint NOT NULL
);
ALTER TABLE frozen.topic ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME frozen.topic_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE frozen.turn (
    topic bigint NOT NULL,
    n bigint NOT NULL,
    session bigint NOT NULL,
    next_id bigint NOT NULL
)
WITH (autovacuum_vacuum_threshold='1000', autovacuum_vacuum_scale_factor='0.0');
INSERT INTO frozen.agenda OVERRIDING SYSTEM VALUE VALUES
	(1, 'pack', 1795139682345),
	(2, 'pack', 1795139682354),
	(3, 'forget', 1795226081383),
	(4, 'pack', 1795139682396),
	(5, 'pack', 1795139682401),
	(6, 'forget', 1795830881404);
INSERT INTO frozen.audit VALUES
	(0, 1, 1795139681345, '\x7b22616374696f6e223a2261756469745f626567756e222c226174223a313739353133393638313334352c226661637473223a7b2274656e616e74223a2264656661756c74222c2274656e616e745f6964223a317d7d', '\xdad7c185f1e5e1b172596c85917603d030a05c6e893f8a40e4d8ddab3134bdfd'),
	(1, 1, 1795139681345, '\x7b22616374696f6e223a226372656174655f746f706963222c226174223a313739353133393638313334352c226661637473223a7b2273657474696e6773223a7b2261726368697665223a66616c73652c22627265616b6572223a6e756c6c2c22646561645f6c657474657273223a747275652c22646564757065223a6e756c6c2c226865616c7468223a7b22636f6e73756d657273223a6e756c6c2c2264656164223a6e756c6c2c226f6c646573745f616765223a6e756c6c2c2272657472795f726174696f223a6e756c6c2c22756e64656c697665726564223a6e756c6c7d2c226b696e64223a226c6f67222c226c616e6573223a6e756c6c2c226c65617365223a33302e302c226d61785f696e5f666c69676874223a6e756c6c2c22706172746974696f6e73223a312c227061796c6f61645f62797465735f6d6178223a313034383537362c2272617465223a6e756c6c2c22726574656e74696f6e223a7b22616765223a3630343830302e302c226279746573223a6e756c6c2c2264726f705f756e736574746c6564223a66616c73652c22736574746c6564223a66616c73657d2c227265747279223a7b2262617365223a312e302c22627564676574223a6e756c6c2c22636170223a333630302e302c226a6974746572223a226e6f6e65222c226d61785f617474656d707473223a332c227368617065223a226578706f6e656e7469616c227d2c2274746c223a6e756c6c7d7d2c227072696e636970616c223a22656d6265646465643a726f6f74222c22746f706963223a226f7264657273227d', '\x4fdb167a508280d8f0fe2040eb3bbe957bacd8c4800f99c1de82aff59900b2d3'),
	(1, 2, 1795139681354, '\x7b22616374696f6e223a226372656174655f67726f7570222c226174223a313739353133393638313335342c226661637473223a7b2267726f7570223a2267222c2273657474696e6773223a7b22627265616b6572223a6e756c6c2c22646561645f6c657474657273223a6e756c6c2c226c65617365223a6e756c6c2c226d61785f696e5f666c69676874223a6e756c6c2c2272617465223a6e756c6c2c227265747279223a6e756c6c7d2c227374617274223a7b2261745f6d73223a6e756c6c2c226f666673657473223a7b7d2c22776f7264223a226561726c69657374227d7d2c227072696e636970616c223a22656d6265646465643a726f6f74222c22746f706963223a226f7264657273227d', '\xb982094f1c7c61fa96925e544472fc41097d738dfc661389b762bd1cacf5710d'),
	(1, 3, 1795139681396, '\x7b22616374696f6e223a226372656174655f746f706963222c226174223a313739353133393638313339362c226661637473223a7b2273657474696e6773223a7b2261726368697665223a66616c73652c22627265616b6572223a6e756c6c2c22646561645f6c657474657273223a747275652c22646564757065223a6e756c6c2c226865616c7468223a7b22636f6e73756d657273223a6e756c6c2c2264656164223a6e756c6c2c226f6c646573745f616765223a6e756c6c2c2272657472795f726174696f223a6e756c6c2c22756e64656c697665726564223a6e756c6c7d2c226b696e64223a227175657565222c226c616e6573223a7b22627265616b6572223a6e756c6c2c226d61785f696e5f666c69676874223a6e756c6c2c2272617465223a6e756c6c2c2277656967687473223a7b2261223a327d7d2c226c65617365223a33302e302c226d61785f696e5f666c69676874223a6e756c6c2c22706172746974696f6e73223a312c227061796c6f61645f62797465735f6d6178223a313034383537362c2272617465223a6e756c6c2c22726574656e74696f6e223a7b22616765223a6e756c6c2c226279746573223a6e756c6c2c2264726f705f756e736574746c6564223a66616c73652c22736574746c6564223a747275657d2c227265747279223a7b2262617365223a312e302c22627564676574223a6e756c6c2c22636170223a333630302e302c226a6974746572223a226e6f6e65222c226d61785f617474656d707473223a332c227368617065223a226578706f6e656e7469616c227d2c2274746c223a6e756c6c7d7d2c227072696e636970616c223a22656d6265646465643a726f6f74222c22746f706963223a226a6f6273227d', '\xbf95a89f6b0bf819a08983abef808acb948afa1aa8380e09b1c4a6fc08272c95');
INSERT INTO frozen.audit_head VALUES
	(0, 1, '\xdad7c185f1e5e1b172596c85917603d030a05c6e893f8a40e4d8ddab3134bdfd', '\x2032de54cdeec34444b9d711fc776b3e37804627dd8971e98dfe0967eab17c5b'),
	(1, 3, '\xbf95a89f6b0bf819a08983abef808acb948afa1aa8380e09b1c4a6fc08272c95', '\x8ceadafbd2eba1b717032e7d1fb71949aeb20b17b0a2c28905729f6076ec1188'),
	(-1, 3, '\x24f0808649d08a085b7ac6356014468a361dbb2f91564f7e165d19c91d1939f5', '\xa49a44106d21818d88f8128fe0bfcaa12e8f97980dde42b331e8ee5d100129c5');
INSERT INTO frozen.block VALUES
	(1, 0, 100, 1087, 1795139681359, NULL, '\x44554c590101010000000000010000000000000001000000000000000000000000000000640000004fbca9f6a10100001d000000e2030000c6a03c843efcda5c9192b97e3161316636613962633465333165396164346265356333306491dc0064c4076f726465722030c4076f726465722031c4076f726465722032c4076f726465722033c4076f726465722034c4076f726465722035c4076f726465722036c4076f726465722037c4076f726465722038c4076f726465722039c4086f72646572203130c4086f72646572203131c4086f72646572203132c4086f72646572203133c4086f72646572203134c4086f72646572203135c4086f72646572203136c4086f72646572203137c4086f72646572203138c4086f72646572203139c4086f72646572203230c4086f72646572203231c4086f72646572203232c4086f72646572203233c4086f72646572203234c4086f72646572203235c4086f72646572203236c4086f72646572203237c4086f72646572203238c4086f72646572203239c4086f72646572203330c4086f72646572203331c4086f72646572203332c4086f72646572203333c4086f72646572203334c4086f72646572203335c4086f72646572203336c4086f72646572203337c4086f72646572203338c4086f72646572203339c4086f72646572203430c4086f72646572203431c4086f72646572203432c4086f72646572203433c4086f72646572203434c4086f72646572203435c4086f72646572203436c4086f72646572203437c4086f72646572203438c4086f72646572203439c4086f72646572203530c4086f72646572203531c4086f72646572203532c4086f72646572203533c4086f72646572203534c4086f72646572203535c4086f72646572203536c4086f72646572203537c4086f72646572203538c4086f72646572203539c4086f72646572203630c4086f72646572203631c4086f72646572203632c4086f72646572203633c4086f72646572203634c4086f72646572203635c4086f72646572203636c4086f72646572203637c4086f72646572203638c4086f72646572203639c4086f72646572203730c4086f72646572203731c4086f72646572203732c4086f72646572203733c4086f72646572203734c4086f72646572203735c4086f72646572203736c4086f72646572203737c4086f72646572203738c4086f72646572203739c4086f72646572203830c4086f72646572203831c4086f72646572203832c4086f72646572203833c4086f72646572203834c4086f72646572203835c4086f72646572203836c4086f72646572203837c4086f72646572203838c4086f72646572203839c4086f72646572203930c4086f72646572203931c4086f72646572203932c4086f72646572203933c4086f72646572203934c4086f72646572203935c4086f72646572203936c4086f72646572203937c4086f72646572203938c4086f72646572203939'),
	(1, 100, 1, 109, 1795139681361, NULL, '\x44554c5901010500000000000100000000000000010000000000000064000000000000000100000051bca9f6a10100001d0000001000000047b2cc6462b5f6f79192b97e316131663661396263353133316539616434626535633331019291c4096f726465722031303091a16b'),
	(1, 101, 1, 109, 1795139681362, NULL, '\x44554c5901010500000000000100000000000000010000000000000065000000000000000100000052bca9f6a10100001d000000100000007babd7ba364b39d39192b97e316131663661396263353233316539616434626535633332019291c4096f726465722031303191a16b'),
	(1, 102, 1, 109, 1795139681363, NULL, '\x44554c5901010500000000000100000000000000010000000000000066000000000000000100000053bca9f6a10100001d00000010000000346a57c8ff8e084d9192b97e316131663661396263353333316539616434626535633333019291c4096f726465722031303291a16b'),
	(1, 103, 1, 109, 1795139681363, NULL, '\x44554c5901010500000000000100000000000000010000000000000067000000000000000100000053bca9f6a10100001d000000100000003136849cb21604409192b97e316131663661396263353333316539616434626535633334019291c4096f726465722031303391a16b'),
	(1, 104, 1, 109, 1795139681364, NULL, '\x44554c5901010500000000000100000000000000010000000000000068000000000000000100000054bca9f6a10100001d000000100000003e1a0cd2c9095e409192b97e316131663661396263353433316539616434626535633335019291c4096f726465722031303491a16b'),
	(1, 105, 1, 109, 1795139681364, NULL, '\x44554c5901010500000000000100000000000000010000000000000069000000000000000100000054bca9f6a10100001d00000010000000d9575a81ed0f682a9192b97e316131663661396263353433316539616434626535633336019291c4096f726465722031303591a16b'),
	(1, 106, 1, 109, 1795139681364, NULL, '\x44554c590101050000000000010000000000000001000000000000006a000000000000000100000054bca9f6a10100001d000000100000009b2435cc13bc1fa89192b97e316131663661396263353433316539616434626535633337019291c4096f726465722031303691a16b'),
	(1, 107, 1, 109, 1795139681365, NULL, '\x44554c590101050000000000010000000000000001000000000000006b000000000000000100000055bca9f6a10100001d00000010000000f7d9cfb9186ae8379192b97e316131663661396263353533316539616434626535633338019291c4096f726465722031303791a16b'),
	(1, 108, 1, 109, 1795139681365, NULL, '\x44554c590101050000000000010000000000000001000000000000006c000000000000000100000055bca9f6a10100001d00000010000000db3db8f71ecdf9d09192b97e316131663661396263353533316539616434626535633339019291c4096f726465722031303891a16b'),
	(1, 109, 1, 109, 1795139681366, NULL, '\x44554c590101050000000000010000000000000001000000000000006d000000000000000100000056bca9f6a10100001d00000010000000bee1941f752fb9e59192b97e316131663661396263353633316539616434626535633361019291c4096f726465722031303991a16b'),
	(1, 110, 1, 109, 1795139681366, NULL, '\x44554c590101050000000000010000000000000001000000000000006e000000000000000100000056bca9f6a10100001d00000010000000fd4a35dd90f1f0fb9192b97e316131663661396263353633316539616434626535633362019291c4096f726465722031313091a16b'),
	(1, 111, 1, 109, 1795139681366, NULL, '\x44554c590101050000000000010000000000000001000000000000006f000000000000000100000056bca9f6a10100001d00000010000000f6f8193d6ea9de059192b97e316131663661396263353633316539616434626535633363019291c4096f726465722031313191a16b'),
	(1, 112, 1, 109, 1795139681367, NULL, '\x44554c5901010500000000000100000000000000010000000000000070000000000000000100000057bca9f6a10100001d000000100000001206aceaaf2ca51e9192b97e316131663661396263353733316539616434626535633364019291c4096f726465722031313291a16b'),
	(1, 113, 1, 109, 1795139681367, NULL, '\x44554c5901010500000000000100000000000000010000000000000071000000000000000100000057bca9f6a10100001d00000010000000ce880a622f0e3c059192b97e316131663661396263353733316539616434626535633365019291c4096f726465722031313391a16b'),
	(1, 114, 1, 109, 1795139681367, NULL, '\x44554c5901010500000000000100000000000000010000000000000072000000000000000100000057bca9f6a10100001d000000100000002de0b358fe8ae1aa9192b97e316131663661396263353733316539616434626535633366019291c4096f726465722031313491a16b'),
	(1, 115, 1, 110, 1795139681368, NULL, '\x44554c5901010500000000000100000000000000010000000000000073000000000000000100000058bca9f6a10100001e00000010000000aa0f6e87b65634929192ba7e31613166366139626335383331653961643462653563333130019291c4096f726465722031313591a16b'),
	(1, 116, 1, 110, 1795139681368, NULL, '\x44554c5901010500000000000100000000000000010000000000000074000000000000000100000058bca9f6a10100001e00000010000000a702dd885483c3ee9192ba7e31613166366139626335383331653961643462653563333131019291c4096f726465722031313691a16b'),
	(1, 117, 1, 110, 1795139681369, NULL, '\x44554c5901010500000000000100000000000000010000000000000075000000000000000100000059bca9f6a10100001e000000100000007e380bcd0031215a9192ba7e31613166366139626335393331653961643462653563333132019291c4096f726465722031313791a16b'),
	(1, 118, 1, 110, 1795139681369, NULL, '\x44554c5901010500000000000100000000000000010000000000000076000000000000000100000059bca9f6a10100001e00000010000000f3413a1e627f3d519192ba7e31613166366139626335393331653961643462653563333133019291c4096f726465722031313891a16b'),
	(1, 119, 1, 110, 1795139681369, NULL, '\x44554c5901010500000000000100000000000000010000000000000077000000000000000100000059bca9f6a10100001e00000010000000ac934290dc674be29192ba7e31613166366139626335393331653961643462653563333134019291c4096f726465722031313991a16b'),
	(1, 120, 1, 110, 1795139681370, NULL, '\x44554c590101050000000000010000000000000001000000000000007800000000000000010000005abca9f6a10100001e000000100000005321c508e18b34f29192ba7e31613166366139626335393331653961643462653563333135019291c4096f726465722031323091a16b'),
	(1, 121, 1, 110, 1795139681370, NULL, '\x44554c590101050000000000010000000000000001000000000000007900000000000000010000005abca9f6a10100001e00000010000000ab5ab5df8e5251f59192ba7e31613166366139626335613331653961643462653563333136019291c4096f726465722031323191a16b'),
	(1, 122, 1, 110, 1795139681370, NULL, '\x44554c590101050000000000010000000000000001000000000000007a00000000000000010000005abca9f6a10100001e00000010000000564c601fd5e3d8a09192ba7e31613166366139626335613331653961643462653563333137019291c4096f726465722031323291a16b'),
	(1, 123, 1, 110, 1795139681371, NULL, '\x44554c590101050000000000010000000000000001000000000000007b00000000000000010000005bbca9f6a10100001e000000100000008ab4ad5ee8fa812b9192ba7e31613166366139626335613331653961643462653563333138019291c4096f726465722031323391a16b'),
	(1, 124, 1, 110, 1795139681371, NULL, '\x44554c590101050000000000010000000000000001000000000000007c00000000000000010000005bbca9f6a10100001e000000100000008b985eced0020d409192ba7e31613166366139626335623331653961643462653563333139019291c4096f726465722031323491a16b'),
	(1, 125, 1, 110, 1795139681371, NULL, '\x44554c590101050000000000010000000000000001000000000000007d00000000000000010000005bbca9f6a10100001e000000100000006faf8bd5d51dd3079192ba7e31613166366139626335623331653961643462653563333161019291c4096f726465722031323591a16b'),
	(1, 126, 1, 110, 1795139681372, NULL, '\x44554c590101050000000000010000000000000001000000000000007e00000000000000010000005cbca9f6a10100001e00000010000000cdeebbe398052a399192ba7e31613166366139626335633331653961643462653563333162019291c4096f726465722031323691a16b'),
	(1, 127, 1, 110, 1795139681372, NULL, '\x44554c590101050000000000010000000000000001000000000000007f00000000000000010000005cbca9f6a10100001e000000100000004f7cbe96ecd6c8939192ba7e31613166366139626335633331653961643462653563333163019291c4096f726465722031323791a16b'),
	(1, 128, 1, 110, 1795139681372, NULL, '\x44554c590101050000000000010000000000000001000000000000008000000000000000010000005cbca9f6a10100001e00000010000000949a7be8e01b12399192ba7e31613166366139626335633331653961643462653563333164019291c4096f726465722031323891a16b'),
	(1, 129, 1, 110, 1795139681373, NULL, '\x44554c590101050000000000010000000000000001000000000000008100000000000000010000005dbca9f6a10100001e00000010000000a3260f3ea65349219192ba7e31613166366139626335643331653961643462653563333165019291c4096f726465722031323991a16b'),
	(1, 130, 1, 110, 1795139681373, NULL, '\x44554c590101050000000000010000000000000001000000000000008200000000000000010000005dbca9f6a10100001e000000100000004bf55db651843e6a9192ba7e31613166366139626335643331653961643462653563333166019291c4096f726465722031333091a16b'),
	(1, 131, 1, 110, 1795139681373, NULL, '\x44554c590101050000000000010000000000000001000000000000008300000000000000010000005dbca9f6a10100001e000000100000002b2a2422b364aee29192ba7e31613166366139626335643331653961643462653563333230019291c4096f726465722031333191a16b'),
	(1, 132, 1, 110, 1795139681374, NULL, '\x44554c590101050000000000010000000000000001000000000000008400000000000000010000005ebca9f6a10100001e00000010000000130782b0cde7a25a9192ba7e31613166366139626335653331653961643462653563333231019291c4096f726465722031333291a16b'),
	(1, 133, 1, 110, 1795139681374, NULL, '\x44554c590101050000000000010000000000000001000000000000008500000000000000010000005ebca9f6a10100001e000000100000008e74e761eb88bf2d9192ba7e31613166366139626335653331653961643462653563333232019291c4096f726465722031333391a16b'),
	(1, 134, 1, 110, 1795139681374, NULL, '\x44554c590101050000000000010000000000000001000000000000008600000000000000010000005ebca9f6a10100001e00000010000000dfaee68d7820b8389192ba7e31613166366139626335653331653961643462653563333233019291c4096f726465722031333491a16b'),
	(1, 135, 1, 110, 1795139681375, NULL, '\x44554c590101050000000000010000000000000001000000000000008700000000000000010000005fbca9f6a10100001e000000100000006760fae34e72995a9192ba7e31613166366139626335663331653961643462653563333234019291c4096f726465722031333591a16b'),
	(1, 136, 1, 110, 1795139681375, NULL, '\x44554c590101050000000000010000000000000001000000000000008800000000000000010000005fbca9f6a10100001e000000100000001efe2d56417ff2f19192ba7e31613166366139626335663331653961643462653563333235019291c4096f726465722031333691a16b'),
	(1, 137, 1, 110, 1795139681375, NULL, '\x44554c590101050000000000010000000000000001000000000000008900000000000000010000005fbca9f6a10100001e0000001000000023c451ccab6ebce59192ba7e31613166366139626335663331653961643462653563333236019291c4096f726465722031333791a16b'),
	(1, 138, 1, 110, 1795139681376, NULL, '\x44554c590101050000000000010000000000000001000000000000008a000000000000000100000060bca9f6a10100001e0000001000000042caf38d24ad02e19192ba7e31613166366139626336303331653961643462653563333237019291c4096f726465722031333891a16b'),
	(1, 139, 1, 110, 1795139681380, NULL, '\x44554c590101050000000000010000000000000001000000000000008b000000000000000100000064bca9f6a10100001e00000010000000a3d9670da8c907569192ba7e31613166366139626336343331653961643462653563333238019291c4096f726465722031333991a16b'),
	(1, 140, 1, 110, 1795139681380, NULL, '\x44554c590101050000000000010000000000000001000000000000008c000000000000000100000064bca9f6a10100001e00000010000000654f92cd2e08471e9192ba7e31613166366139626336343331653961643462653563333239019291c4096f726465722031343091a16b'),
	(1, 141, 1, 110, 1795139681380, NULL, '\x44554c590101050000000000010000000000000001000000000000008d000000000000000100000064bca9f6a10100001e0000001000000051e15223488dd2a69192ba7e31613166366139626336343331653961643462653563333261019291c4096f726465722031343191a16b'),
	(1, 142, 1, 110, 1795139681381, NULL, '\x44554c590101050000000000010000000000000001000000000000008e000000000000000100000065bca9f6a10100001e00000010000000fabf85b9cb7d9b289192ba7e31613166366139626336353331653961643462653563333262019291c4096f726465722031343291a16b'),
	(1, 143, 1, 110, 1795139681381, NULL, '\x44554c590101050000000000010000000000000001000000000000008f000000000000000100000065bca9f6a10100001e00000010000000875cdd5e0804b5629192ba7e31613166366139626336353331653961643462653563333263019291c4096f726465722031343391a16b'),
	(1, 144, 1, 110, 1795139681381, NULL, '\x44554c5901010500000000000100000000000000010000000000000090000000000000000100000065bca9f6a10100001e0000001000000000f2297de5283aee9192ba7e31613166366139626336353331653961643462653563333264019291c4096f726465722031343491a16b'),
	(1, 145, 1, 110, 1795139681382, NULL, '\x44554c5901010500000000000100000000000000010000000000000091000000000000000100000066bca9f6a10100001e00000010000000a54b3bc64053be899192ba7e31613166366139626336363331653961643462653563333265019291c4096f726465722031343591a16b'),
	(1, 146, 1, 110, 1795139681382, NULL, '\x44554c5901010500000000000100000000000000010000000000000092000000000000000100000066bca9f6a10100001e000000100000005923044d8e19e8629192ba7e31613166366139626336363331653961643462653563333266019291c4096f726465722031343691a16b'),
	(1, 147, 1, 110, 1795139681382, NULL, '\x44554c5901010500000000000100000000000000010000000000000093000000000000000100000066bca9f6a10100001e0000001000000031ab14268d3e73329192ba7e31613166366139626336363331653961643462653563333330019291c4096f726465722031343791a16b'),
	(1, 148, 2, 106, 1795139681383, NULL, '\x44554c5901010100000000000100000000000000010000000000000094000000000000000200000067bca9f6a10100001200000018000000c0c7643bd7ea8dc39192ae7468652066726f7a656e206f6e65029192c4096f7264657220313438c4096f7264657220313439'),
	(2, 0, 90, 1477, 1795139681401, NULL, '\x44554c5901016300000000000100000000000000020000000000000000000000000000005a00000079bca9f6a10100001e00000067050000d84b919f43de19409192ba7e316131663661396263373933316539616434626535633333315a94dc005ac4056a6f622030c4056a6f622031c4056a6f622032c4056a6f622033c4056a6f622034c4056a6f622035c4056a6f622036c4056a6f622037c4056a6f622038c4056a6f622039c4066a6f62203130c4066a6f62203131c4066a6f62203132c4066a6f62203133c4066a6f62203134c4066a6f62203135c4066a6f62203136c4066a6f62203137c4066a6f62203138c4066a6f62203139c4066a6f62203230c4066a6f62203231c4066a6f62203232c4066a6f62203233c4066a6f62203234c4066a6f62203235c4066a6f62203236c4066a6f62203237c4066a6f62203238c4066a6f62203239c4066a6f62203330c4066a6f62203331c4066a6f62203332c4066a6f62203333c4066a6f62203334c4066a6f62203335c4066a6f62203336c4066a6f62203337c4066a6f62203338c4066a6f62203339c4066a6f62203430c4066a6f62203431c4066a6f62203432c4066a6f62203433c4066a6f62203434c4066a6f62203435c4066a6f62203436c4066a6f62203437c4066a6f62203438c4066a6f62203439c4066a6f62203530c4066a6f62203531c4066a6f62203532c4066a6f62203533c4066a6f62203534c4066a6f62203535c4066a6f62203536c4066a6f62203537c4066a6f62203538c4066a6f62203539c4066a6f62203630c4066a6f62203631c4066a6f62203632c4066a6f62203633c4066a6f62203634c4066a6f62203635c4066a6f62203636c4066a6f62203637c4066a6f62203638c4066a6f62203639c4066a6f62203730c4066a6f62203731c4066a6f62203732c4066a6f62203733c4066a6f62203734c4066a6f62203735c4066a6f62203736c4066a6f62203737c4066a6f62203738c4066a6f62203739c4066a6f62203830c4066a6f62203831c4066a6f62203832c4066a6f62203833c4066a6f62203834c4066a6f62203835c4066a6f62203836c4066a6f62203837c4066a6f62203838c4066a6f62203839dc005aa3696430a3696431a3696432a3696433a3696434a3696435a3696436a3696437a3696438a3696439a469643130a469643131a469643132a469643133a469643134a469643135a469643136a469643137a469643138a469643139a469643230a469643231a469643232a469643233a469643234a469643235a469643236a469643237a469643238a469643239a469643330a469643331a469643332a469643333a469643334a469643335a469643336a469643337a469643338a469643339a469643430a469643431a469643432a469643433a469643434a469643435a469643436a469643437a469643438a469643439a469643530a469643531a469643532a469643533a469643534a469643535a469643536a469643537a469643538a469643539a469643630a469643631a469643632a469643633a469643634a469643635a469643636a469643637a469643638a469643639a469643730a469643731a469643732a469643733a469643734a469643735a469643736a469643737a469643738a469643739a469643830a469643831a469643832a469643833a469643834a469643835a469643836a469643837a469643838a469643839dc005ac0c0c0c0c0c0c0c0c0c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0a161c0dc005a000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102000102'),
	(2, 90, 20, 471, 1795139681403, NULL, '\x44554c590101810000000000010000000000000002000000000000005a00000000000000140000007bbca9f6a10100001e00000079010000545befa0987211559192ba7e316131663661396263376233316539616434626535633333321492dc0014c4076c617465722030c4076c617465722031c4076c617465722032c4076c617465722033c4076c617465722034c4076c617465722035c4076c617465722036c4076c617465722037c4076c617465722038c4076c617465722039c4086c61746572203130c4086c61746572203131c4086c61746572203132c4086c61746572203133c4086c61746572203134c4086c61746572203135c4086c61746572203136c4086c61746572203137c4086c61746572203138c4086c61746572203139dc0014cf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747bcf000001eb6395747b');
INSERT INTO frozen.consumer VALUES
	(1, 1, 'freezer', 1795139681384),
	(1, 2, 'freezer', 1795139681404);
INSERT INTO frozen.cursor VALUES
	(1, 1, 4, 15);
INSERT INTO frozen.dead VALUES
	(1, 1, 1, 10, 1795139681394, 1, '\x66726f7a656e', '\x9185a7617474656d707401a561745f6d73cf000001a1f6a9bc72a477686174a462757279a6726561736f6ea666726f7a656ea8636f6e73756d6572a7667265657a6572'),
	(1, 2, 2, 30, 1795139681409, 1, '\x66726f7a656e', '\x9185a7617474656d707401a561745f6d73cf000001a1f6a9bc81a477686174a462757279a6726561736f6ea666726f7a656ea8636f6e73756d6572a7667265657a6572');
INSERT INTO frozen.event OVERRIDING SYSTEM VALUE VALUES
	(1, 1, '\x5b7b226b696e64223a22746f7069635f63726561746564222c226174223a313739353133393638313334352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226661637473223a7b226b696e64223a226c6f67227d7d5d', '731'),
	(2, 1, '\x5b7b226b696e64223a2267726f75705f63726561746564222c226174223a313739353133393638313335342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c2267726f7570223a2267227d5d', '732'),
	(3, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313335392c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c22636f756e74223a3130307d5d', '735'),
	(4, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130302c22636f756e74223a317d5d', '736'),
	(5, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130312c22636f756e74223a317d5d', '737'),
	(6, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130322c22636f756e74223a317d5d', '738'),
	(7, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130332c22636f756e74223a317d5d', '740'),
	(8, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130342c22636f756e74223a317d5d', '741'),
	(9, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130352c22636f756e74223a317d5d', '742'),
	(10, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130362c22636f756e74223a317d5d', '743'),
	(11, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130372c22636f756e74223a317d5d', '744'),
	(12, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130382c22636f756e74223a317d5d', '745'),
	(13, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336362c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3130392c22636f756e74223a317d5d', '747'),
	(14, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336362c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131302c22636f756e74223a317d5d', '748'),
	(15, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336362c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131312c22636f756e74223a317d5d', '749'),
	(16, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336372c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131322c22636f756e74223a317d5d', '750'),
	(17, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336372c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131332c22636f756e74223a317d5d', '751'),
	(18, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336372c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131342c22636f756e74223a317d5d', '752'),
	(19, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336382c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131352c22636f756e74223a317d5d', '754'),
	(20, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336382c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131362c22636f756e74223a317d5d', '755'),
	(21, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336392c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131372c22636f756e74223a317d5d', '756'),
	(22, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336392c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131382c22636f756e74223a317d5d', '757'),
	(23, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313336392c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3131392c22636f756e74223a317d5d', '758'),
	(24, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337302c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132302c22636f756e74223a317d5d', '759'),
	(25, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337302c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132312c22636f756e74223a317d5d', '760'),
	(26, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337302c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132322c22636f756e74223a317d5d', '761'),
	(27, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132332c22636f756e74223a317d5d', '763'),
	(28, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132342c22636f756e74223a317d5d', '764'),
	(29, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132352c22636f756e74223a317d5d', '765'),
	(30, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132362c22636f756e74223a317d5d', '766'),
	(31, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132372c22636f756e74223a317d5d', '767'),
	(32, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132382c22636f756e74223a317d5d', '768'),
	(33, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3132392c22636f756e74223a317d5d', '769'),
	(34, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133302c22636f756e74223a317d5d', '771'),
	(35, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133312c22636f756e74223a317d5d', '772'),
	(36, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133322c22636f756e74223a317d5d', '773'),
	(37, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133332c22636f756e74223a317d5d', '774'),
	(38, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133342c22636f756e74223a317d5d', '775'),
	(39, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133352c22636f756e74223a317d5d', '776'),
	(40, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133362c22636f756e74223a317d5d', '777'),
	(41, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133372c22636f756e74223a317d5d', '779'),
	(42, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313337362c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133382c22636f756e74223a317d5d', '780'),
	(43, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338302c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3133392c22636f756e74223a317d5d', '782'),
	(44, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338302c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134302c22636f756e74223a317d5d', '783'),
	(45, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338302c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134312c22636f756e74223a317d5d', '784'),
	(46, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134322c22636f756e74223a317d5d', '785'),
	(47, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134332c22636f756e74223a317d5d', '786'),
	(48, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338312c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134342c22636f756e74223a317d5d', '787'),
	(49, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134352c22636f756e74223a317d5d', '789'),
	(50, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134362c22636f756e74223a317d5d', '790'),
	(51, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134372c22636f756e74223a317d5d', '791'),
	(52, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313338332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c226f6666736574223a3134382c22636f756e74223a327d5d', '792'),
	(53, 1, '\x5b7b226b696e64223a22636c61696d6564222c226174223a313739353133393638313338342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c2267726f7570223a2267222c22636f756e74223a31302c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030307d5d', '795'),
	(54, 1, '\x5b7b226b696e64223a2261636b6564222c226174223a313739353133393638313339322c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c2267726f7570223a2267222c22636f756e74223a31302c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030307d5d', '796'),
	(55, 1, '\x5b7b226b696e64223a22636c61696d6564222c226174223a313739353133393638313339332c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c2267726f7570223a2267222c226f6666736574223a31302c22636f756e74223a312c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030317d5d', '797'),
	(56, 1, '\x5b7b226b696e64223a22627572696564222c226174223a313739353133393638313339342c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c2267726f7570223a2267222c226f6666736574223a31302c22636f756e74223a312c226661637473223a7b22726561736f6e223a2266726f7a656e222c22617474656d707473223a317d2c22636f6e73756d6572223a22667265657a6572227d5d', '798'),
	(57, 1, '\x5b7b226b696e64223a22636c61696d6564222c226174223a313739353133393638313339352c2274656e616e74223a2264656661756c74222c22746f706963223a226f7264657273222c2267726f7570223a2267222c226f6666736574223a31312c22636f756e74223a342c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030327d5d', '799'),
	(58, 1, '\x5b7b226b696e64223a22746f7069635f63726561746564222c226174223a313739353133393638313339362c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c226661637473223a7b226b696e64223a227175657565227d7d5d', '800'),
	(59, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313430312c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c22636f756e74223a39307d5d', '802'),
	(60, 1, '\x5b7b226b696e64223a227075626c6973686564222c226174223a313739353133393638313430332c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c226f6666736574223a39302c22636f756e74223a32302c226661637473223a7b226c61746572223a32307d7d5d', '804'),
	(61, 1, '\x5b7b226b696e64223a22636c61696d6564222c226174223a313739353133393638313430342c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c2267726f7570223a227175657565222c22636f756e74223a352c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030332c2264656c746173223a5b332c392c362c365d7d5d', '805'),
	(62, 1, '\x5b7b226b696e64223a2261636b6564222c226174223a313739353133393638313430372c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c2267726f7570223a227175657565222c22636f756e74223a352c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030332c2277686f6c65223a747275657d5d', '807'),
	(63, 1, '\x5b7b226b696e64223a22636c61696d6564222c226174223a313739353133393638313430382c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c2267726f7570223a227175657565222c226f6666736574223a33302c22636f756e74223a312c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030347d5d', '809'),
	(64, 1, '\x5b7b226b696e64223a22627572696564222c226174223a313739353133393638313430392c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c2267726f7570223a227175657565222c226f6666736574223a33302c22636f756e74223a312c226661637473223a7b22726561736f6e223a2266726f7a656e222c22617474656d707473223a317d2c22636f6e73756d6572223a22667265657a6572227d5d', '810'),
	(65, 1, '\x5b7b226b696e64223a22636c61696d6564222c226174223a313739353133393638313431302c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c2267726f7570223a227175657565222c226f6666736574223a362c22636f756e74223a332c22636f6e73756d6572223a22667265657a6572222c226c65617365223a313030352c2264656c746173223a5b33302c365d7d5d', '812'),
	(66, 1, '\x5b7b226b696e64223a2263616e63656c6c6564222c226174223a313739353133393638313431322c2274656e616e74223a2264656661756c74222c22746f706963223a226a6f6273222c226f6666736574223a38392c22636f756e74223a317d5d', '813');
INSERT INTO frozen.grp OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 1, 'g', '{"lease":null,"retry":null,"dead_letters":null,"rate":null,"max_in_flight":null,"breaker":null}', 0, 1795139681354),
	(2, 1, 2, 'queue', '{"lease":null,"retry":null,"dead_letters":null,"rate":null,"max_in_flight":null,"breaker":null}', 0, 1795139681396);
INSERT INTO frozen.lease VALUES
	(1002, 1, 1, 1, 1795139682395, 0, 'freezer', 1795139681395, 11, 4, 4, 1, 0, 0, 0, NULL, NULL, NULL, NULL),
	(1005, 1, 2, 2, 1795139682410, 0, 'freezer', 1795139681410, 6, 3, 3, 1, 0, 0, 0, '\x9306242a', NULL, NULL, '\x95c406000000000000c41800000000000000001f4e961eb632c6661f4e961eb632c666c0c0c0');
INSERT INTO frozen.meta VALUES
	('schema', '8'),
	('works_from', '1'),
	('incarnation', '349c062822845e57');
INSERT INTO frozen.part OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 1, 0, 0, 0, 0, 0, 0, 1795744481345),
	(2, 1, 2, 0, 0, 0, 0, 0, 0, 1795139682407);
INSERT INTO frozen.queue VALUES
	(2, 4, 0, '\x4910044110040000000000020000', '\x919300cb4004000000000000cb4008000000000000', '\x80');
INSERT INTO frozen.receipt VALUES
	(1, 'the frozen one', 1795226081383, '\x87aa7075626c6973685f6964ae7468652066726f7a656e206f6e65a5636f756e7402a57370616e739184a9706172746974696f6e00ac706172746974696f6e5f696401ac66697273745f6f6666736574cc94a5636f756e7402a96475706c6963617465c2a6726f75746573c0a9676976656e5f696473c0aa6475706c69636174657380');
INSERT INTO frozen.tenant OVERRIDING SYSTEM VALUE VALUES
	(1, 'default', 0, '{}', 1, 1795139681345);
INSERT INTO frozen.topic OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 'orders', '{"kind":"log","partitions":1,"lease":30.0,"retry":{"max_attempts":3,"base":1.0,"cap":3600.0,"shape":"exponential","jitter":"none","budget":null},"dead_letters":true,"ttl":null,"dedupe":null,"retention":{"age":604800.0,"bytes":null,"settled":false,"drop_unsettled":false},"archive":false,"rate":null,"payload_bytes_max":1048576,"lanes":null,"health":{"consumers":null,"undelivered":null,"oldest_age":null,"retry_ratio":null,"dead":null},"max_in_flight":null,"breaker":null}', 0, 1, 1795139681345),
	(2, 1, 'jobs', '{"kind":"queue","partitions":1,"lease":30.0,"retry":{"max_attempts":3,"base":1.0,"cap":3600.0,"shape":"exponential","jitter":"none","budget":null},"dead_letters":true,"ttl":null,"dedupe":null,"retention":{"age":null,"bytes":null,"settled":true,"drop_unsettled":false},"archive":false,"rate":null,"payload_bytes_max":1048576,"lanes":{"max_in_flight":null,"rate":null,"weights":{"a":2},"breaker":null},"health":{"consumers":null,"undelivered":null,"oldest_age":null,"retry_ratio":null,"dead":null},"max_in_flight":null,"breaker":null}', 0, 1, 1795139681396);
INSERT INTO frozen.turn VALUES
	(1, 2, 2038645429168284371, 0),
	(2, 2, 2038645429168284371, 0);
SELECT pg_catalog.setval('frozen.agenda_id_seq', 6, true);
SELECT pg_catalog.setval('frozen.chunk_id_seq', 1, false);
SELECT pg_catalog.setval('frozen.event_id_seq', 66, true);
SELECT pg_catalog.setval('frozen.grp_id_seq', 2, true);
SELECT pg_catalog.setval('frozen.ids_by_thousand', 1000, true);
SELECT pg_catalog.setval('frozen.inbox_id_seq', 1, false);
SELECT pg_catalog.setval('frozen.job_id_seq', 1, false);
SELECT pg_catalog.setval('frozen.part_id_seq', 2, true);
SELECT pg_catalog.setval('frozen.refused_id_seq', 1, false);
SELECT pg_catalog.setval('frozen.stage_id_seq', 1, false);
SELECT pg_catalog.setval('frozen.tenant_id_seq', 1, true);
SELECT pg_catalog.setval('frozen.topic_id_seq', 2, true);
ALTER TABLE ONLY frozen.agenda
    ADD CONSTRAINT agenda_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.audit_head
    ADD CONSTRAINT audit_head_pkey PRIMARY KEY (tenant);
ALTER TABLE ONLY frozen.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (tenant, n);
ALTER TABLE ONLY frozen.block
    ADD CONSTRAINT block_pkey PRIMARY KEY (partition, base);
ALTER TABLE ONLY frozen.chunk
    ADD CONSTRAINT chunk_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.consumer
    ADD CONSTRAINT consumer_pkey PRIMARY KEY (grp, name);
ALTER TABLE ONLY frozen.cursor
    ADD CONSTRAINT cursor_pkey PRIMARY KEY (partition, grp, n);
ALTER TABLE ONLY frozen.dead
    ADD CONSTRAINT dead_pkey PRIMARY KEY (partition, grp, "offset");
ALTER TABLE ONLY frozen.done
    ADD CONSTRAINT done_pkey PRIMARY KEY (partition, first);
ALTER TABLE ONLY frozen.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.gate
    ADD CONSTRAINT gate_pkey PRIMARY KEY (grp, n);
ALTER TABLE ONLY frozen.gone
    ADD CONSTRAINT gone_pkey PRIMARY KEY (partition, base);
ALTER TABLE ONLY frozen.grp
    ADD CONSTRAINT grp_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.grp
    ADD CONSTRAINT grp_topic_name_key UNIQUE (topic, name);
ALTER TABLE ONLY frozen.hole
    ADD CONSTRAINT hole_pkey PRIMARY KEY (partition, run, seq);
ALTER TABLE ONLY frozen.id_block
    ADD CONSTRAINT id_block_pkey PRIMARY KEY (topic, run, idx);
ALTER TABLE ONLY frozen.id_run
    ADD CONSTRAINT id_run_pkey PRIMARY KEY (topic, id);
ALTER TABLE ONLY frozen.ids_to
    ADD CONSTRAINT ids_to_pkey PRIMARY KEY (partition);
ALTER TABLE ONLY frozen.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (topic, xid, id);
ALTER TABLE ONLY frozen.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.job
    ADD CONSTRAINT job_tenant_topic_name_key UNIQUE (tenant, topic, name);
ALTER TABLE ONLY frozen.kept
    ADD CONSTRAINT kept_pkey PRIMARY KEY (partition, "offset");
ALTER TABLE ONLY frozen.key
    ADD CONSTRAINT key_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (partition, lane);
ALTER TABLE ONLY frozen.lane_wait
    ADD CONSTRAINT lane_wait_pkey PRIMARY KEY (partition, lane, priority, due_at_ms, "offset");
ALTER TABLE ONLY frozen.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (partition, id);
ALTER TABLE ONLY frozen.loose
    ADD CONSTRAINT loose_pkey PRIMARY KEY (partition, "offset");
ALTER TABLE ONLY frozen.member
    ADD CONSTRAINT member_pkey PRIMARY KEY (name);
ALTER TABLE ONLY frozen.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY frozen.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (tenant, id);
ALTER TABLE ONLY frozen.part
    ADD CONSTRAINT part_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.principal
    ADD CONSTRAINT principal_pkey PRIMARY KEY (tenant, name);
ALTER TABLE ONLY frozen.push
    ADD CONSTRAINT push_pkey PRIMARY KEY (tenant, name);
ALTER TABLE ONLY frozen.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (partition, n);
ALTER TABLE ONLY frozen.receipt
    ADD CONSTRAINT receipt_pkey PRIMARY KEY (topic, publish_id);
ALTER TABLE ONLY frozen.refused
    ADD CONSTRAINT refused_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.run_block
    ADD CONSTRAINT run_block_pkey PRIMARY KEY (partition, run, idx);
ALTER TABLE ONLY frozen.run_data
    ADD CONSTRAINT run_data_pkey PRIMARY KEY (partition, run, idx);
ALTER TABLE ONLY frozen.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (partition, id);
ALTER TABLE ONLY frozen.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (tenant, name);
ALTER TABLE ONLY frozen.secret
    ADD CONSTRAINT secret_pkey PRIMARY KEY (tenant, version);
ALTER TABLE ONLY frozen.stage
    ADD CONSTRAINT stage_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.stage
    ADD CONSTRAINT stage_tenant_topic_name_key UNIQUE (tenant, topic, name);
ALTER TABLE ONLY frozen.staged
    ADD CONSTRAINT staged_pkey PRIMARY KEY (stage, number);
ALTER TABLE ONLY frozen.tenant
    ADD CONSTRAINT tenant_name_key UNIQUE (name);
ALTER TABLE ONLY frozen.tenant
    ADD CONSTRAINT tenant_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.topic
    ADD CONSTRAINT topic_pkey PRIMARY KEY (id);
ALTER TABLE ONLY frozen.topic
    ADD CONSTRAINT topic_tenant_name_key UNIQUE (tenant, name);
ALTER TABLE ONLY frozen.turn
    ADD CONSTRAINT turn_pkey PRIMARY KEY (topic, n);
CREATE INDEX agenda_due ON frozen.agenda USING btree (due_at_ms);
CREATE INDEX consumer_by_name ON frozen.consumer USING btree (tenant, name);
CREATE INDEX done_until ON frozen.done USING btree (until_ms);
CREATE INDEX event_in_order ON frozen.event USING btree (xid, id);
CREATE INDEX gone_until ON frozen.gone USING btree (until_ms);
CREATE INDEX inbox_xid ON frozen.inbox USING btree (xid);
CREATE INDEX job_expires ON frozen.job USING btree (expires_at_ms);
CREATE INDEX job_under_way ON frozen.job USING btree (id) WHERE (stages IS NOT NULL);
CREATE INDEX key_of_principal ON frozen.key USING btree (tenant, principal);
CREATE INDEX lane_broken ON frozen.lane USING btree (partition, lane) WHERE (circuit_state > 0);
CREATE INDEX lane_look ON frozen.lane USING btree (partition, look_at_ms) WHERE (look_at_ms IS NOT NULL);
CREATE INDEX lane_wait_by_offset ON frozen.lane_wait USING btree (partition, "offset");
CREATE INDEX lease_due ON frozen.lease USING btree (((grp + 0)), ((partition + 0)), due_at_ms);
CREATE INDEX loose_due ON frozen.loose USING btree (partition, due_at_ms) WHERE (waits = 1);
CREATE INDEX loose_fresh ON frozen.loose USING btree (partition, due_at_ms) WHERE ((waits = 1) AND (attempts = 0));
CREATE INDEX part_look ON frozen.part USING btree (look_at_ms) WHERE (look_at_ms IS NOT NULL);
CREATE INDEX part_of_topic ON frozen.part USING btree (topic, number);
CREATE UNIQUE INDEX push_group ON frozen.push USING btree (grp);
CREATE INDEX push_stamp ON frozen.push USING btree (stamp);
CREATE INDEX push_target ON frozen.push USING btree (target) WHERE (target IS NOT NULL);
CREATE INDEX push_topic ON frozen.push USING btree (topic);
CREATE INDEX receipt_expires ON frozen.receipt USING btree (expires_at_ms);
CREATE INDEX schedule_look ON frozen.schedule USING btree (look_at_ms) WHERE (look_at_ms IS NOT NULL);
CREATE INDEX schedule_topic ON frozen.schedule USING btree (topic, look_at_ms);
CREATE INDEX stage_expires ON frozen.stage USING btree (expires_at_ms);
