-- events_insert
INSERT INTO duly_event (tenant, data)
VALUES (:tenant, :data);

-- event_rows
-- The oldest, of all tenants.
SELECT id, tenant, data
  FROM duly_event
 ORDER BY id
 LIMIT :limit;

-- event_rows_of
SELECT data
  FROM duly_event
 WHERE tenant = :tenant
 ORDER BY id;

-- event_rows_delete
DELETE FROM duly_event
 WHERE id <= :upto;

-- tenant_name
-- Zero rows: the store is damaged.
SELECT name
  FROM duly_tenant
 WHERE id = :tenant;
