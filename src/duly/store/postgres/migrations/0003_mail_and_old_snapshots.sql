-- Which leases mail settles something of. NULL, of an older broker: any.
ALTER TABLE inbox ADD COLUMN leases BIGINT[];

-- own_leases: what precedes a change of leases that are only remembered, or were just looked up. Refuses all that was sent
-- with it unless each of them is there, no application's open transaction has a share of it, and none that has committed
-- settled something of it. The second statement sees what was committed before the first had the rows.
CREATE FUNCTION own_leases(of_partition BIGINT, wanted BIGINT[], topic_id BIGINT, floor XID8)
RETURNS VOID LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one BIGINT;
    had BIGINT := 0;
BEGIN
    -- One by one: for several at once all of a partition are read, dead ones, too, because few are expected to be there.
    FOREACH one IN ARRAY wanted LOOP
        PERFORM 1 FROM lease WHERE partition = of_partition AND id = one FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            had := had + 1;
        END IF;
    END LOOP;
    IF had <> cardinality(wanted)
       OR EXISTS (SELECT 1 FROM inbox AS i
                   WHERE i.topic = topic_id AND i.xid >= floor AND i.kind = 'settle'
                     AND (i.leases IS NULL OR i.leases && wanted)) THEN
        RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU002';
    END IF;
END
$$;

-- end_leases: deletes leases, one by one for the same reason.
CREATE FUNCTION end_leases(of_partition BIGINT, ended BIGINT[]) RETURNS VOID LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one BIGINT;
BEGIN
    FOREACH one IN ARRAY ended LOOP
        DELETE FROM lease WHERE partition = of_partition AND id = one;
    END LOOP;
END
$$;

-- While anybody holds an old snapshot, what is deleted stays in the indexes: whatever looks at their beginning looks
-- through all of it.

-- Events are packed in the order of their transactions, from the oldest on that was under way when it was last done.
ALTER TABLE event ADD COLUMN xid XID8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX event_in_order ON event (xid, id);

-- With the partition first, this one was taken to find a lease by its id, and read from its beginning.
DROP INDEX lease_due;
CREATE INDEX lease_due ON lease (grp, partition, due_at_ms);
