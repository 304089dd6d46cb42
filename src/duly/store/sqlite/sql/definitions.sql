-- definitions
-- How often a definition that a process may remember was changed or deleted. No row: never.
SELECT value
  FROM duly_meta
 WHERE key = 'definitions';

-- definitions_changed
INSERT INTO duly_meta (key, value)
VALUES ('definitions', 1)
ON CONFLICT DO UPDATE SET value = value + 1;

-- tenant_id
-- Zero rows: there is no such tenant.
SELECT id
  FROM duly_tenant
 WHERE name = :name;

-- tenant_find
-- Zero rows: there is no such tenant.
SELECT id, name, state, settings, version, created_at_ms
  FROM duly_tenant
 WHERE name = :name;

-- tenant_by_id
-- Zero rows: it was deleted.
SELECT id, name, state, settings, version, created_at_ms
  FROM duly_tenant
 WHERE id = :tenant;

-- tenant_list
SELECT name
  FROM duly_tenant
 WHERE name > :after
 ORDER BY name
 LIMIT :limit;

-- tenants_set
-- Those on which something is set.
SELECT id, name, state, settings, version, created_at_ms
  FROM duly_tenant
 WHERE settings <> '{}';

-- tenant_update
UPDATE duly_tenant
   SET state = :state,
       settings = :settings,
       version = version + 1
 WHERE id = :id;

-- tenant_deleting
-- Zero rows: none is being deleted.
SELECT id, name, state, settings, version, created_at_ms
  FROM duly_tenant
 WHERE state = 2
 ORDER BY id
 LIMIT 1;

-- tenant_parts
-- Partitions of its topics, those that are being erased among them.
SELECT count(*)
  FROM duly_part
 WHERE tenant = :tenant;

-- tenant_delete
DELETE FROM duly_tenant
 WHERE id = :tenant;

-- tenant_events_erase
DELETE FROM duly_event
 WHERE tenant = :tenant;

-- tenant_keys_end
-- The rows stay: a store that had keys is never open again.
UPDATE duly_key
   SET revoked_at_ms = coalesce(revoked_at_ms, :now),
       note = ''
 WHERE tenant = :tenant;

-- tenant_principals_erase
DELETE FROM duly_principal
 WHERE tenant = :tenant;

-- tenant_secrets_erase
DELETE FROM duly_secret
 WHERE tenant = :tenant;

-- tenant_operations_erase
DELETE FROM duly_operation
 WHERE tenant = :tenant;

-- tenant_pushes_erase
DELETE FROM duly_push
 WHERE tenant = :tenant;

-- topic_count
-- Without the system's own.
SELECT count(*)
  FROM duly_topic
 WHERE tenant = :tenant
   AND name NOT GLOB '$*';

-- topics_some
-- The first ones, the system's own among them.
SELECT name
  FROM duly_topic
 WHERE tenant = :tenant
 ORDER BY name
 LIMIT :limit;

-- stored_bytes
-- What the logs of its topics take, without the system's own, what is kept after its block is gone, and what is staged.
SELECT (SELECT coalesce(sum(block.bytes), 0)
          FROM duly_topic AS topic
          JOIN duly_part AS part ON part.topic = topic.id
          JOIN duly_block AS block ON block.tenant = topic.tenant AND block.partition = part.id
         WHERE topic.tenant = :tenant
           AND topic.name NOT GLOB '$*')
     + (SELECT coalesce(sum(length(kept.data)), 0)
          FROM duly_topic AS topic
          JOIN duly_part AS part ON part.topic = topic.id
          JOIN duly_kept AS kept ON kept.tenant = topic.tenant AND kept.partition = part.id
         WHERE topic.tenant = :tenant
           AND topic.name NOT GLOB '$*')
     + (SELECT coalesce(sum(length(chunk.data)), 0)
          FROM duly_staged AS staged
          JOIN duly_chunk AS chunk ON chunk.id = staged.chunk
         WHERE staged.tenant = :tenant);

-- tenant_insert
INSERT INTO duly_tenant (name, settings, created_at_ms)
VALUES (:name, :settings, :now)
RETURNING id;

-- topic_find
-- A row for every partition. Zero rows: the tenant has no such topic.
SELECT topic.id, topic.tenant, tenant.name, topic.name, topic.settings, topic.paused, topic.version,
       topic.created_at_ms, tenant.state, tenant.settings,
       EXISTS (SELECT 1 FROM duly_secret AS s WHERE s.tenant = tenant.id AND s.wrapped IS NULL), part.id
  FROM duly_tenant AS tenant
  JOIN duly_topic AS topic ON topic.tenant = tenant.id
  LEFT JOIN duly_part AS part ON part.topic = topic.id
 WHERE tenant.name = :tenant
   AND topic.name = :name
 ORDER BY part.number;

-- topic_list
-- Without the system's own. Zero rows also while the tenant is being deleted: for all who ask its topics are gone.
SELECT topic.name
  FROM duly_topic AS topic
  JOIN duly_tenant AS tenant ON tenant.id = topic.tenant
 WHERE tenant.name = :tenant
   AND topic.name > :after
   AND topic.name NOT GLOB '$*'
   AND tenant.state <> 2
 ORDER BY topic.name
 LIMIT :limit;

-- topic_of_partition
-- Zero rows: the topic was deleted.
SELECT tenant.name, topic.name
  FROM duly_part AS part
  JOIN duly_topic AS topic ON topic.id = part.topic
  JOIN duly_tenant AS tenant ON tenant.id = topic.tenant
 WHERE part.id = :partition;

-- topic_insert
INSERT INTO duly_topic (tenant, name, settings, created_at_ms)
VALUES (:tenant, :name, :settings, :now)
RETURNING id;

-- part_insert
INSERT INTO duly_part (tenant, topic, number)
VALUES (:tenant, :topic, :number)
RETURNING id;

-- topic_update
UPDATE duly_topic
   SET settings = :settings,
       paused = :paused,
       version = version + 1
 WHERE id = :id
RETURNING version;

-- topic_delete
DELETE FROM duly_topic
 WHERE id = :id;

-- part_orphan
UPDATE duly_part
   SET topic = NULL
 WHERE topic = :topic;

-- part_delete
DELETE FROM duly_part
 WHERE id = :partition
   AND topic IS NULL;

-- group_find
-- Zero rows: the topic has no such group.
SELECT id, topic, name, settings, paused, created_at_ms
  FROM duly_grp
 WHERE topic = :topic
   AND name = :name;

-- group_list
SELECT id, topic, name, settings, paused, created_at_ms
  FROM duly_grp
 WHERE topic = :topic
 ORDER BY name;

-- group_insert
INSERT INTO duly_grp (tenant, topic, name, settings, created_at_ms)
VALUES (:tenant, :topic, :name, :settings, :now)
RETURNING id;

-- group_update
UPDATE duly_grp
   SET settings = :settings,
       paused = :paused
 WHERE id = :id;

-- group_delete
DELETE FROM duly_grp
 WHERE id = :id;

-- consumers_delete
DELETE FROM duly_consumer
 WHERE tenant = :tenant
   AND grp = :grp;
