-- Tenants with quotas, who may do what, what is wrapped under the master key, and what was done.

-- state: 0 active, 1 suspended, 2 being deleted. settings: quotas and encryption, JSON.
ALTER TABLE duly_tenant ADD COLUMN state INTEGER NOT NULL DEFAULT 0;
ALTER TABLE duly_tenant ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
ALTER TABLE duly_tenant ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE duly_tenant ADD COLUMN created_at_ms INTEGER NOT NULL DEFAULT 0;

-- Secrets of the store (tenant 0) and data keys of tenants, each wrapped under the master key. wrapped is NULL once it was
-- shredded: what was sealed with it cannot be read by anybody.
CREATE TABLE duly_secret (
    tenant        INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    wrapped       BLOB,
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, version)
) WITHOUT ROWID;

-- Who may do what. tenant 0: the operators of the store. grants and certificates: JSON lists.
CREATE TABLE duly_principal (
    tenant        INTEGER NOT NULL,
    name          TEXT NOT NULL,
    grants        TEXT NOT NULL,
    certificates  TEXT NOT NULL,
    version       INTEGER NOT NULL DEFAULT 1,
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- What a principal shows. mac: of the whole key, under the store's secret; the key itself is nowhere.
CREATE TABLE duly_key (
    id            TEXT NOT NULL PRIMARY KEY,
    tenant        INTEGER NOT NULL,
    principal     TEXT NOT NULL,
    mac           BLOB NOT NULL,
    note          TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    revoked_at_ms INTEGER,
    used_at_ms    INTEGER
) WITHOUT ROWID;
CREATE INDEX duly_key_of_principal ON duly_key (tenant, principal);

-- Every denied and every administrative action, a chain a tenant: mac is of the entry and the mac before it.
CREATE TABLE duly_audit (
    tenant INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    at_ms  INTEGER NOT NULL,
    entry  BLOB NOT NULL,
    mac    BLOB NOT NULL,
    PRIMARY KEY (tenant, n)
) WITHOUT ROWID;

-- Where each chain ends: without it, that its last rows were deleted could not be told. seal: a mac of the other columns.
CREATE TABLE duly_audit_head (
    tenant INTEGER NOT NULL PRIMARY KEY,
    n      INTEGER NOT NULL,
    mac    BLOB NOT NULL,
    seal   BLOB NOT NULL
);
