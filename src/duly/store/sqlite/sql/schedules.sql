-- schedule
-- Zero rows: there is none of that name.
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM duly_schedule AS s
  JOIN duly_topic AS t ON t.id = s.topic
 WHERE s.tenant = :tenant
   AND s.name = :name;

-- schedule_lock
-- The same, which nobody else changes before this transaction ends: nobody else writes at all.
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM duly_schedule AS s
  JOIN duly_topic AS t ON t.id = s.topic
 WHERE s.tenant = :tenant
   AND s.name = :name;

-- schedule_page
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM duly_schedule AS s
  JOIN duly_topic AS t ON t.id = s.topic
 WHERE s.tenant = :tenant
   AND s.name > :after
 ORDER BY s.name
 LIMIT :limit;

-- schedules_due
-- Those of a topic whose time has come.
SELECT s.name, s.topic, t.name, s.settings, s.paused, s.version, s.created_at_ms, s.next_at_ms, s.look_at_ms, s.state
  FROM duly_schedule AS s
  JOIN duly_topic AS t ON t.id = s.topic
 WHERE s.topic = :topic
   AND s.look_at_ms <= :now
 ORDER BY s.look_at_ms
 LIMIT :limit;

-- schedule_next
-- Zero rows: none will ever tick.
SELECT s.look_at_ms, o.name, t.name
  FROM duly_schedule AS s
  JOIN duly_tenant AS o ON o.id = s.tenant
  JOIN duly_topic AS t ON t.id = s.topic
 WHERE s.look_at_ms IS NOT NULL
 ORDER BY s.look_at_ms
 LIMIT 1;

-- schedule_insert
-- Changes nothing if there is one of that name.
INSERT INTO duly_schedule (tenant, name, topic, settings, paused, version, created_at_ms, next_at_ms, look_at_ms, state)
VALUES (:tenant, :name, :topic, :settings, :paused, 1, :now, :next_at, :look_at, :state)
ON CONFLICT DO NOTHING;

-- schedule_put
UPDATE duly_schedule
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
UPDATE duly_schedule
   SET next_at_ms = :next_at,
       look_at_ms = :look_at,
       state = :state
 WHERE tenant = :tenant
   AND name = :name;

-- schedules_put_off
-- Nobody can have those of a topic tick now. Zero rows: none was due.
UPDATE duly_schedule
   SET look_at_ms = :until
 WHERE topic = :topic
   AND look_at_ms <= :now;

-- schedules_wake
-- A tenant's are looked at when they tick, and not later.
UPDATE duly_schedule
   SET look_at_ms = next_at_ms
 WHERE tenant = :tenant
   AND look_at_ms IS NOT NULL;

-- schedule_delete
DELETE FROM duly_schedule
 WHERE tenant = :tenant
   AND name = :name;

-- schedules_erase
DELETE FROM duly_schedule
 WHERE tenant = :tenant
   AND topic = :topic;
