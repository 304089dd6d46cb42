-- events_insert
INSERT INTO event (tenant, data)
VALUES (:tenant, :data);

-- event_rows
-- The oldest, of all tenants.
SELECT id, tenant, data
  FROM event
 ORDER BY id
 LIMIT :limit;

-- event_rows_of
SELECT data
  FROM event
 WHERE tenant = :tenant
 ORDER BY id;

-- event_rows_delete
-- Differs from sqlite because transactions commit in another order than they began: those that were read, and no others.
DELETE FROM event
 WHERE id = ANY(:ids::BIGINT[]);

-- tenant_name
-- Zero rows: the store is damaged.
SELECT name
  FROM tenant
 WHERE id = :tenant;
