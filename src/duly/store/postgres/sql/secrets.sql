-- tenant_settings
-- Zero rows: there is no such tenant.
SELECT settings
  FROM tenant
 WHERE id = :tenant;

-- tenant_settings_put
UPDATE tenant
   SET settings = :settings,
       version = version + 1
 WHERE id = :tenant;

-- secret
-- Zero rows: there is no such version.
SELECT tenant, version, wrapped, created_at_ms
  FROM secret
 WHERE tenant = :tenant
   AND version = :version;

-- secrets
-- A tenant's, by version.
SELECT tenant, version, wrapped, created_at_ms
  FROM secret
 WHERE tenant = :tenant
 ORDER BY version;

-- every_secret
SELECT tenant, version, wrapped, created_at_ms
  FROM secret
 ORDER BY tenant, version;

-- secret_insert
-- Leaves what is there: another process was first.
INSERT INTO secret (tenant, version, wrapped, created_at_ms)
VALUES (:tenant, :version, :wrapped, :now)
ON CONFLICT DO NOTHING;

-- secret_rewrap
-- Never one that was shredded.
UPDATE secret
   SET wrapped = :wrapped
 WHERE tenant = :tenant
   AND version = :version
   AND wrapped IS NOT NULL;

-- secret_shred
-- The rows stay, so that their versions are not given again.
UPDATE secret
   SET wrapped = NULL
 WHERE tenant = :tenant;
