-- member_put
-- Differs from sqlite because the time is PostgreSQL's own.
INSERT INTO {schema}.member (name, seen_at_ms, facts)
VALUES (%(name)s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, %(facts)s)
ON CONFLICT (name) DO UPDATE SET seen_at_ms = excluded.seen_at_ms,
                                 facts = excluded.facts;

-- member_remove
-- Zero rows: it was forgotten already.
DELETE FROM {schema}.member
 WHERE name = %(name)s;

-- members_forget
-- Differs from sqlite because the time is PostgreSQL's own.
DELETE FROM {schema}.member
 WHERE seen_at_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - %(forget)s;

-- members
-- Those who were seen lately. Zero rows: no broker serves the store.
-- Differs from sqlite because the time is PostgreSQL's own.
SELECT seen_at_ms, facts
  FROM {schema}.member
 WHERE seen_at_ms >= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - %(lately)s
 ORDER BY name;
