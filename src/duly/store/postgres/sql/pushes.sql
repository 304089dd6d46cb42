-- push
-- Zero rows: the tenant has no such push.
SELECT p.tenant, t.name, p.name, p.topic, c.name, p.grp, g.name, p.settings, p.secrets, p.state, p.reason,
       p.version, p.created_at_ms, p.target, p.holder
  FROM push AS p
  JOIN tenant AS t ON t.id = p.tenant
  JOIN topic AS c ON c.id = p.topic
  JOIN grp AS g ON g.id = p.grp
 WHERE p.tenant = :tenant
   AND p.name = :name;

-- push_claim
-- Differs from sqlite because others write meanwhile: the row is nobody else's until this transaction ends.
SELECT p.tenant, t.name, p.name, p.topic, c.name, p.grp, g.name, p.settings, p.secrets, p.state, p.reason,
       p.version, p.created_at_ms, p.target, p.holder
  FROM push AS p
  JOIN tenant AS t ON t.id = p.tenant
  JOIN topic AS c ON c.id = p.topic
  JOIN grp AS g ON g.id = p.grp
 WHERE p.tenant = :tenant
   AND p.name = :name
   FOR UPDATE OF p;

-- push_page
SELECT p.tenant, t.name, p.name, p.topic, c.name, p.grp, g.name, p.settings, p.secrets, p.state, p.reason,
       p.version, p.created_at_ms, p.target, p.holder
  FROM push AS p
  JOIN tenant AS t ON t.id = p.tenant
  JOIN topic AS c ON c.id = p.topic
  JOIN grp AS g ON g.id = p.grp
 WHERE p.tenant = :tenant
   AND p.name > :after
 ORDER BY p.name
 LIMIT :limit;

-- pushes_of_topic
SELECT p.tenant, t.name, p.name, p.topic, c.name, p.grp, g.name, p.settings, p.secrets, p.state, p.reason,
       p.version, p.created_at_ms, p.target, p.holder
  FROM push AS p
  JOIN tenant AS t ON t.id = p.tenant
  JOIN topic AS c ON c.id = p.topic
  JOIN grp AS g ON g.id = p.grp
 WHERE p.topic = :topic
 ORDER BY p.name;

-- pushes_to_topic
SELECT p.tenant, t.name, p.name, p.topic, c.name, p.grp, g.name, p.settings, p.secrets, p.state, p.reason,
       p.version, p.created_at_ms, p.target, p.holder
  FROM push AS p
  JOIN tenant AS t ON t.id = p.tenant
  JOIN topic AS c ON c.id = p.topic
  JOIN grp AS g ON g.id = p.grp
 WHERE p.target = :topic
 ORDER BY p.tenant, p.name;

-- push_insert
-- Zero rows: the tenant has one of that name, or the group has one.
INSERT INTO push (tenant, name, topic, grp, settings, secrets, state, reason, version, created_at_ms, target, stamp)
VALUES (:tenant, :name, :topic, :grp, :settings, :secrets, :state, :reason, :version, :created_at, :target, :stamp)
ON CONFLICT DO NOTHING;

-- push_put
UPDATE push
   SET settings = :settings,
       secrets = :secrets,
       version = :version,
       target = :target,
       stamp = :stamp
 WHERE tenant = :tenant
   AND name = :name;

-- push_state
UPDATE push
   SET state = :state,
       reason = :reason,
       version = :version,
       target = :target,
       stamp = :stamp
 WHERE tenant = :tenant
   AND name = :name;

-- push_hold
-- Zero rows: it was deleted meanwhile.
UPDATE push
   SET holder = :holder,
       stamp = :stamp
 WHERE tenant = :tenant
   AND name = :name;

-- push_delete
DELETE FROM push
 WHERE tenant = :tenant
   AND name = :name;

-- push_pulse
-- Another one after any change: whoever writes to a row gives it another stamp.
SELECT count(*), coalesce(sum(stamp), 0)::BIGINT
  FROM push;

-- pushes_active
-- Without what a push says: who runs which is decided by this.
SELECT t.name, p.name, p.tenant, p.holder, p.version
  FROM push AS p
  JOIN tenant AS t ON t.id = p.tenant
 WHERE p.state = 'active'
 ORDER BY p.tenant, p.name;
