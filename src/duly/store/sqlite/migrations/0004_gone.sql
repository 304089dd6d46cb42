-- The publish ids of dropped blocks, for as long as a client of a broker may repeat them.
CREATE TABLE duly_gone (
    tenant    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    base      INTEGER NOT NULL,
    until_ms  INTEGER NOT NULL,
    publishes BLOB NOT NULL,
    PRIMARY KEY (tenant, partition, base)
) WITHOUT ROWID;

CREATE INDEX duly_gone_until ON duly_gone (until_ms);
