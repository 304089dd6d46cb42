-- audit_claim
-- Makes the head of a chain that has none yet, and locks it. Always one row.
INSERT INTO audit_head AS head (tenant, n, mac, seal)
VALUES (:tenant, 0, '', '')
ON CONFLICT (tenant) DO UPDATE SET n = head.n
RETURNING n, mac, seal, coalesce((SELECT max(entry.n) FROM audit AS entry WHERE entry.tenant = :tenant), 0);

-- audit_head_put
UPDATE audit_head
   SET n = :n,
       mac = :mac,
       seal = :seal
 WHERE tenant = :tenant;

-- audit_heads
SELECT tenant, n, mac, seal
  FROM audit_head
 ORDER BY tenant;

-- audit_owners
SELECT DISTINCT tenant
  FROM audit;

-- audit_insert
INSERT INTO audit (tenant, n, at_ms, entry, mac)
VALUES (:tenant, :n, :at_ms, :entry, :mac);

-- audit_rows
SELECT n, at_ms, entry, mac
  FROM audit
 WHERE tenant = :tenant
   AND n > :above
   AND at_ms >= :since
 ORDER BY n
 LIMIT :limit;

-- audit_erase
DELETE FROM audit
 WHERE tenant = :tenant;

-- audit_head_erase
DELETE FROM audit_head
 WHERE tenant = :tenant;
