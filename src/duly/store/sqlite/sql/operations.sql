-- operation_begin
-- Leaves what is there.
INSERT INTO duly_operation (tenant, id, name, left_over, at_ms, published, held, expires_at_ms)
VALUES (:tenant, :id, :name, :left_over, :now, 0, 0, :now)
ON CONFLICT DO NOTHING;

-- operations
-- One of those that were begun.
SELECT id, name, left_over, at_ms, published, stopped_at_ms, held, expires_at_ms
  FROM duly_operation
 WHERE tenant = :tenant
   AND id = :id;

-- operation
-- Zero rows: it is not counted.
SELECT name, left_over, at_ms, published, stopped_at_ms, held, expires_at_ms
  FROM duly_operation
 WHERE tenant = :tenant
   AND id = :id;

-- operation_put
UPDATE duly_operation
   SET left_over = :left_over,
       at_ms = :at,
       published = :published,
       stopped_at_ms = :stopped_at,
       held = :held,
       expires_at_ms = :expires_at
 WHERE tenant = :tenant
   AND id = :id;

-- operation_page
-- Those that are not at rest.
SELECT id, name, left_over, at_ms, published, stopped_at_ms, held, expires_at_ms
  FROM duly_operation
 WHERE tenant = :tenant
   AND id > :after
   AND (expires_at_ms IS NULL OR expires_at_ms > :now)
   AND (stopped_at_ms IS NOT NULL OR :stopped = 0)
 ORDER BY id
 LIMIT :limit;

-- operations_expire
DELETE FROM duly_operation
 WHERE (tenant, id) IN (SELECT tenant, id
                          FROM duly_operation
                         WHERE expires_at_ms <= :now
                         ORDER BY expires_at_ms
                         LIMIT :limit);

-- operation_next_expiry
SELECT min(expires_at_ms)
  FROM duly_operation;
