-- schedule
-- Zero rows: there is none of that name.
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM schedule AS s
  JOIN topic AS t ON t.id = s.topic
 WHERE s.tenant = :tenant
   AND s.name = :name;

-- schedule_lock
-- Differs from sqlite because others write meanwhile: the row is locked, and whoever ticks has it first or sees what
-- was made of it.
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM schedule AS s
  JOIN topic AS t ON t.id = s.topic
 WHERE s.tenant = :tenant
   AND s.name = :name
   FOR UPDATE OF s;

-- schedule_page
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM schedule AS s
  JOIN topic AS t ON t.id = s.topic
 WHERE s.tenant = :tenant
   AND s.name > :after
 ORDER BY s.name
 LIMIT :limit;

-- schedules_due
-- Differs from sqlite because the rows are locked: somebody may be pausing one.
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM schedule AS s
  JOIN topic AS t ON t.id = s.topic
 WHERE s.topic = :topic
   AND s.look_at_ms <= :now
 ORDER BY s.look_at_ms
 LIMIT :limit
   FOR UPDATE OF s;

-- schedule_next
-- Zero rows: none will ever tick.
SELECT s.look_at_ms, o.name, t.name
  FROM schedule AS s
  JOIN tenant AS o ON o.id = s.tenant
  JOIN topic AS t ON t.id = s.topic
 WHERE s.look_at_ms IS NOT NULL
 ORDER BY s.look_at_ms
 LIMIT 1;

-- schedule_insert
-- Changes nothing if there is one of that name.
INSERT INTO schedule (tenant, name, topic, settings, paused, version, created_at_ms, next_at_ms, look_at_ms, state)
VALUES (:tenant, :name, :topic, :settings, :paused, 1, :now, :next_at, :look_at, :state)
ON CONFLICT DO NOTHING;

-- schedule_put
UPDATE schedule
   SET settings = :settings,
       paused = :paused,
       version = :version,
       next_at_ms = :next_at,
       look_at_ms = :look_at,
       state = :state
 WHERE tenant = :tenant
   AND name = :name;

-- schedule_judged
-- What a tick changes; the settings stay as they lie.
UPDATE schedule
   SET next_at_ms = :next_at,
       look_at_ms = :look_at,
       state = :state
 WHERE tenant = :tenant
   AND name = :name;

-- schedules_put_off
-- Nobody can have those of a topic tick now. Zero rows: none was due.
UPDATE schedule
   SET look_at_ms = :until
 WHERE topic = :topic
   AND look_at_ms <= :now;

-- schedules_wake
-- A tenant's are looked at when they tick, and not later.
UPDATE schedule
   SET look_at_ms = next_at_ms
 WHERE tenant = :tenant
   AND look_at_ms IS NOT NULL;

-- schedule_delete
DELETE FROM schedule
 WHERE tenant = :tenant
   AND name = :name;

-- schedules_erase
DELETE FROM schedule
 WHERE tenant = :tenant
   AND topic = :topic;
