-- With partition and group as they are, this index was taken to find a lease by its id whenever few leases were left of
-- many, and read from end to end: dead ones, too. An expression is looked at by whoever names it, and by nobody else.
DROP INDEX lease_due;
CREATE INDEX lease_due ON lease ((grp + 0), (partition + 0), due_at_ms);
