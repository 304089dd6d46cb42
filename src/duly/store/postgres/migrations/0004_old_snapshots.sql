-- While anybody holds an old snapshot, what is deleted stays in the indexes: whatever looks at their beginning looks
-- through all of it.

-- Events are packed in the order of their transactions, from the oldest on that was under way when it was last done.
ALTER TABLE event ADD COLUMN xid XID8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX event_in_order ON event (xid, id);

-- With the partition first, this one was taken to find a lease by its id, and read from its beginning.
DROP INDEX lease_due;
CREATE INDEX lease_due ON lease (grp, partition, due_at_ms);
