-- definitions_changed
INSERT INTO meta (key, value)
VALUES ('definitions', '1')
ON CONFLICT (key) DO UPDATE SET value = (meta.value::BIGINT + 1)::TEXT;

-- tenant_id
-- Zero rows: there is no such tenant.
SELECT id
  FROM tenant
 WHERE name = :name;

-- tenant_find
-- Zero rows: there is no such tenant.
SELECT id, name, state, settings, version, created_at_ms
  FROM tenant
 WHERE name = :name;

-- tenant_by_id
-- Zero rows: it was deleted.
SELECT id, name, state, settings, version, created_at_ms
  FROM tenant
 WHERE id = :tenant;

-- tenant_list
SELECT name
  FROM tenant
 WHERE name > :after
 ORDER BY name
 LIMIT :limit;

-- tenants_set
-- Those on which something is set.
SELECT id, name, state, settings, version, created_at_ms
  FROM tenant
 WHERE settings <> '{}';

-- tenant_update
UPDATE tenant
   SET state = :state,
       settings = :settings,
       version = version + 1
 WHERE id = :id;

-- tenant_deleting
-- Zero rows: none is being deleted.
SELECT id, name, state, settings, version, created_at_ms
  FROM tenant
 WHERE state = 2
 ORDER BY id
 LIMIT 1;

-- tenant_parts
-- Partitions of its topics, those that are being erased among them.
SELECT count(*)
  FROM part
 WHERE tenant = :tenant;

-- tenant_delete
DELETE FROM tenant
 WHERE id = :tenant;

-- tenant_events_erase
DELETE FROM event
 WHERE tenant = :tenant;

-- tenant_keys_end
-- The rows stay: a store that had keys is never open again.
UPDATE key
   SET revoked_at_ms = coalesce(revoked_at_ms, :now),
       note = ''
 WHERE tenant = :tenant;

-- tenant_principals_erase
DELETE FROM principal
 WHERE tenant = :tenant;

-- tenant_secrets_erase
DELETE FROM secret
 WHERE tenant = :tenant;

-- tenant_operations_erase
DELETE FROM operation
 WHERE tenant = :tenant;

-- tenant_pushes_erase
DELETE FROM push
 WHERE tenant = :tenant;

-- topic_count
-- Without the system's own.
SELECT count(*)
  FROM topic
 WHERE tenant = :tenant
   AND left(name, 1) <> '$';

-- topics_some
-- The first ones, the system's own among them.
SELECT name
  FROM topic
 WHERE tenant = :tenant
 ORDER BY name
 LIMIT :limit;

-- stored_bytes
-- What the logs of its topics take, without the system's own, what is kept after its block is gone, and what is staged.
SELECT ((SELECT coalesce(sum(block.bytes), 0)
           FROM topic AS topic
           JOIN part AS part ON part.topic = topic.id
           JOIN block AS block ON block.partition = part.id
          WHERE topic.tenant = :tenant
            AND left(topic.name, 1) <> '$')
      + (SELECT coalesce(sum(octet_length(kept.data)), 0)
           FROM topic AS topic
           JOIN part AS part ON part.topic = topic.id
           JOIN kept AS kept ON kept.partition = part.id
          WHERE topic.tenant = :tenant
            AND left(topic.name, 1) <> '$')
      + (SELECT coalesce(sum(octet_length(chunk.data)), 0)
           FROM stage AS stage
           JOIN staged AS staged ON staged.stage = stage.id
           JOIN chunk AS chunk ON chunk.id = staged.chunk
          WHERE stage.tenant = :tenant))::BIGINT;

-- tenant_insert
-- Answers the one that is there already, too: two may make it at once.
INSERT INTO tenant (name, settings, created_at_ms)
VALUES (:name, :settings, :now)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING id;

-- topic_find
-- A row for every partition. Zero rows: the tenant has no such topic.
SELECT topic.id, topic.tenant, tenant.name, topic.name, topic.settings, topic.paused, topic.version,
       topic.created_at_ms, tenant.state, tenant.settings,
       EXISTS (SELECT 1 FROM secret AS s WHERE s.tenant = tenant.id AND s.wrapped IS NULL), part.id
  FROM tenant AS tenant
  JOIN topic AS topic ON topic.tenant = tenant.id
  LEFT JOIN part AS part ON part.topic = topic.id
 WHERE tenant.name = :tenant
   AND topic.name = :name
 ORDER BY part.number;

-- topic_list
-- Without the system's own. Zero rows also while the tenant is being deleted: for all who ask its topics are gone.
SELECT topic.name
  FROM topic AS topic
  JOIN tenant AS tenant ON tenant.id = topic.tenant
 WHERE tenant.name = :tenant
   AND topic.name > :after
   AND left(topic.name, 1) <> '$'
   AND tenant.state <> 2
 ORDER BY topic.name
 LIMIT :limit;

-- topic_of_partition
-- Zero rows: the topic was deleted.
SELECT tenant.name, topic.name
  FROM part AS part
  JOIN topic AS topic ON topic.id = part.topic
  JOIN tenant AS tenant ON tenant.id = topic.tenant
 WHERE part.id = :partition;

-- topic_insert
-- Zero rows: another transaction has made it meanwhile.
INSERT INTO topic (tenant, name, settings, created_at_ms)
VALUES (:tenant, :name, :settings, :now)
ON CONFLICT (tenant, name) DO NOTHING
RETURNING id;

-- part_insert
INSERT INTO part (tenant, topic, number)
VALUES (:tenant, :topic, :number)
RETURNING id;

-- topic_update
UPDATE topic
   SET settings = :settings,
       paused = :paused,
       version = version + 1
 WHERE id = :id
RETURNING version;

-- topic_delete
DELETE FROM topic
 WHERE id = :id;

-- part_orphan
UPDATE part
   SET topic = NULL
 WHERE topic = :topic;

-- part_delete
DELETE FROM part
 WHERE id = :partition
   AND topic IS NULL;

-- group_find
-- Zero rows: the topic has no such group.
SELECT id, topic, name, settings, paused, created_at_ms
  FROM grp
 WHERE topic = :topic
   AND name = :name;

-- group_list
SELECT id, topic, name, settings, paused, created_at_ms
  FROM grp
 WHERE topic = :topic
 ORDER BY name;

-- group_insert
INSERT INTO grp (tenant, topic, name, settings, created_at_ms)
VALUES (:tenant, :topic, :name, :settings, :now)
RETURNING id;

-- group_update
UPDATE grp
   SET settings = :settings,
       paused = :paused
 WHERE id = :id;

-- group_delete
DELETE FROM grp
 WHERE id = :id;

-- consumers_delete
DELETE FROM consumer
 WHERE grp = :grp;
