-- events_insert
INSERT INTO event (tenant, data)
VALUES (:tenant, :data);

-- event_rows
-- The oldest, of all tenants; and below which transaction there is nothing more to come.
SELECT id, tenant, data, pg_snapshot_xmin(pg_current_snapshot())
  FROM event
 WHERE xid >= :floor::XID8
 ORDER BY xid, id
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

-- any_event
-- Zero rows: all events are packed.
SELECT 1::BIGINT
  FROM event
 LIMIT 1;
