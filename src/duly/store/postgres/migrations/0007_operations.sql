-- What operations have published (engine/budget.py). id: a hash of the name; name: sealed where the tenant is encrypted.
-- At at_ms it had so many messages left; at rest from expires_at_ms on. held: stopped by hand.
-- What changes is in no index, and there is room beside each row: so that a row that is updated stays in its page.
CREATE TABLE operation (
    tenant        bigint           NOT NULL,
    id            bigint           NOT NULL,
    name          bytea            NOT NULL,
    left_over     double precision NOT NULL,
    at_ms         bigint           NOT NULL,
    published     bigint           NOT NULL,
    stopped_at_ms bigint,
    held          smallint         NOT NULL,
    expires_at_ms bigint,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 70);
