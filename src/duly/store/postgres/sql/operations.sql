-- operation_begin
-- Leaves what is there.
INSERT INTO operation (tenant, id, name, left_over, at_ms, published, held, expires_at_ms)
VALUES (:tenant, :id, :name, :left_over, :now::BIGINT, 0, 0, :now::BIGINT)
ON CONFLICT DO NOTHING;

-- operations
-- Differs from sqlite because several are locked at once, in the order in which everybody locks them.
SELECT id, name, left_over, at_ms, published, stopped_at_ms, held, expires_at_ms
  FROM operation
 WHERE tenant = :tenant
   AND id = ANY(:ids::BIGINT[])
 ORDER BY id
   FOR UPDATE;

-- operation
-- Zero rows: it is not counted.
SELECT name, left_over, at_ms, published, stopped_at_ms, held, expires_at_ms
  FROM operation
 WHERE tenant = :tenant
   AND id = :id
   FOR UPDATE;

-- operation_put
UPDATE operation
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
  FROM operation
 WHERE tenant = :tenant
   AND id > :after
   AND (expires_at_ms IS NULL OR expires_at_ms > :now)
   AND (stopped_at_ms IS NOT NULL OR :stopped = 0)
 ORDER BY id
 LIMIT :limit;

-- operations_expire
-- Differs from sqlite because one that somebody publishes for just now is not waited for: it does not rest.
DELETE FROM operation
 WHERE (tenant, id) IN (SELECT tenant, id
                          FROM operation
                         WHERE expires_at_ms <= :now
                         ORDER BY expires_at_ms
                         LIMIT :limit
                           FOR UPDATE SKIP LOCKED);

-- operation_next_expiry
SELECT min(expires_at_ms)
  FROM operation;
