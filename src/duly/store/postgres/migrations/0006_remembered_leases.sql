-- Leases outlast others' turns in memory, so whoever changes one says how it was: so many messages left, and whether one of
-- them was cancelled meanwhile. own_leases stays for brokers that know no better.

-- own_leases_as: has these leases, which are as they were remembered, and which no application's transaction has settled;
-- or refuses everything (DU002).
CREATE FUNCTION own_leases_as(of_partition BIGINT, wanted BIGINT[], lives BIGINT[], marks BIGINT[], topic_id BIGINT, floor XID8)
RETURNS VOID LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- One by one: for several at once all of a partition are read, dead ones, too, because few are expected to be there.
    FOR at IN 1 .. cardinality(wanted) LOOP
        PERFORM 1
           FROM lease
          WHERE partition = of_partition
            AND id = wanted[at]
            AND live = lives[at]
            AND marked = marks[at]
            FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU002';
        END IF;
    END LOOP;
    IF EXISTS (SELECT 1
                 FROM inbox AS i
                WHERE i.topic = topic_id
                  AND i.xid >= floor
                  AND i.kind = 'settle'
                  AND (i.leases IS NULL OR i.leases && wanted)) THEN
        RAISE EXCEPTION 'things have changed' USING ERRCODE = 'DU002';
    END IF;
END
$$;
