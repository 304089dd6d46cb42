-- principal
-- Zero rows: the tenant has no such principal.
SELECT tenant, name, grants, certificates, version, created_at_ms
  FROM principal
 WHERE tenant = :tenant
   AND name = :name;

-- principals
SELECT tenant, name, grants, certificates, version, created_at_ms
  FROM principal
 WHERE tenant = :tenant
   AND name > :after
 ORDER BY name
 LIMIT :limit;

-- principals_with_certificates
-- Of all tenants: a certificate does not say whose it is.
SELECT tenant, name, grants, certificates, version, created_at_ms
  FROM principal
 WHERE certificates <> '[]';

-- principal_put
INSERT INTO principal (tenant, name, grants, certificates, version, created_at_ms)
VALUES (:tenant, :name, :grants, :certificates, :version, :created_at)
ON CONFLICT (tenant, name)
   DO UPDATE SET grants = excluded.grants, certificates = excluded.certificates, version = excluded.version;

-- principal_lock
-- Others who would change it, or give it keys, wait until this transaction ends.
UPDATE principal
   SET version = version
 WHERE tenant = :tenant
   AND name = :name;

-- principal_delete
DELETE FROM principal
 WHERE tenant = :tenant
   AND name = :name;

-- keys_delete
DELETE FROM key
 WHERE tenant = :tenant
   AND principal = :principal;

-- key
-- Zero rows: there is no such key.
SELECT id, tenant, principal, mac, note, created_at_ms, expires_at_ms, revoked_at_ms, used_at_ms
  FROM key
 WHERE id = :id;

-- keys
SELECT id, tenant, principal, mac, note, created_at_ms, expires_at_ms, revoked_at_ms, used_at_ms
  FROM key
 WHERE tenant = :tenant
   AND id > :after
 ORDER BY id
 LIMIT :limit;

-- keys_of_principal
SELECT id, tenant, principal, mac, note, created_at_ms, expires_at_ms, revoked_at_ms, used_at_ms
  FROM key
 WHERE tenant = :tenant
   AND principal = :principal
   AND id > :after
 ORDER BY id
 LIMIT :limit;

-- key_any
-- Zero rows: the store never had a key.
SELECT 1
  FROM key
 LIMIT 1;

-- key_holder
-- A key with the grants of its principal and the name of its tenant. Zero rows: there is no such key, or its principal or
-- its tenant is gone.
SELECT key.id, key.tenant, key.principal, key.mac, key.note, key.created_at_ms, key.expires_at_ms, key.revoked_at_ms,
       key.used_at_ms, coalesce(tenant.name, ''), principal.grants
  FROM key AS key
  JOIN principal AS principal ON principal.tenant = key.tenant AND principal.name = key.principal
  LEFT JOIN tenant AS tenant ON tenant.id = key.tenant
 WHERE key.id = :id
   AND (key.tenant = 0 OR tenant.id IS NOT NULL);

-- key_insert
INSERT INTO key (id, tenant, principal, mac, note, created_at_ms, expires_at_ms)
VALUES (:id, :tenant, :principal, :mac, :note, :created_at, :expires_at);

-- key_expire
-- Ends a key earlier than it would have.
UPDATE key
   SET expires_at_ms = :expires_at
 WHERE id = :id;

-- key_revoke
-- The first time counts.
UPDATE key
   SET revoked_at_ms = :now
 WHERE id = :id
   AND revoked_at_ms IS NULL;

-- key_used
-- Not when somebody noted it a moment ago.
UPDATE key
   SET used_at_ms = :now
 WHERE id = :id
   AND (used_at_ms IS NULL OR used_at_ms < :before);
