-- cursor
-- The newest of what was appended (no row is updated for every claim). Zero rows: the group does not exist here.
SELECT next_offset, n
  FROM cursor
 WHERE partition = :partition
   AND grp = :grp
 ORDER BY n DESC
 LIMIT 1;

-- cursor_update
INSERT INTO cursor (partition, grp, n, next_offset)
VALUES (:partition, :grp, :n, :offset);

-- cursor_forget
DELETE FROM cursor
 WHERE partition = :partition
   AND grp = :grp
   AND n = :n;

-- cursor_delete
DELETE FROM cursor
 WHERE partition = :partition
   AND grp = :grp;

-- lease
-- Zero rows: the lease is settled, or was taken over.
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM lease
 WHERE partition = ANY(:partitions::BIGINT[])
   AND id = :id
   FOR UPDATE NOWAIT;

-- lease_looking
-- The same for one who only reads.
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM lease
 WHERE partition = ANY(:partitions::BIGINT[])
   AND id = :id;

-- leases_shared
-- Those of some leases that applications' open transactions have a share of. The others are locked from here on.
WITH mine AS (
    SELECT id
      FROM lease
     WHERE partition = ANY(:partitions::BIGINT[])
       AND id = ANY(:ids::BIGINT[])
       FOR UPDATE SKIP LOCKED
)
SELECT id
  FROM lease
 WHERE partition = ANY(:partitions::BIGINT[])
   AND id = ANY(:ids::BIGINT[])
   AND id NOT IN (SELECT id FROM mine);

-- lease_insert
INSERT INTO lease (id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live,
                   attempts, alone, suspect, offsets, settled, history, keys, marked)
VALUES (:id, :tenant, :partition, :grp, :due_at, :state, :consumer, :claimed_at, :base, :count, :live,
        :attempts, :alone, :suspect, :offsets, :settled, :history, :keys, :marked);

-- lease_settle
UPDATE lease
   SET settled = :settled,
       live = :live
 WHERE partition = :partition
   AND id = :id;

-- lease_mark
UPDATE lease
   SET marked = 1
 WHERE partition = ANY(:partitions::BIGINT[])
   AND id = :id;

-- lease_extend
UPDATE lease
   SET due_at_ms = :due_at
 WHERE partition = :partition
   AND id = :id;

-- lease_delete
SELECT end_leases(:partition, :ids::BIGINT[])::TEXT;

-- own_leases
-- Refused, with the whole transaction, if one of them is not as it was remembered, or an application settles or has
-- settled it.
SELECT own_leases_as(:partition, :ids::BIGINT[], :lives::BIGINT[], :marks::BIGINT[], :topic, :floor::XID8)::TEXT;

-- leases_due
-- None that an application's transaction is settling: it may yet commit. The sums are those of the index (0004).
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM lease
 WHERE grp + 0 = :grp
   AND partition + 0 = :partition
   AND due_at_ms >= :low
   AND due_at_ms <= :now
 ORDER BY due_at_ms, id
 LIMIT :limit
   FOR UPDATE SKIP LOCKED;

-- leases_due_looking
-- The same for one who only reads.
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM lease
 WHERE grp + 0 = :grp
   AND partition + 0 = :partition
   AND due_at_ms >= :low
   AND due_at_ms <= :now
 ORDER BY due_at_ms, id
 LIMIT :limit;

-- leases
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM lease
 WHERE partition = :partition
   AND grp = :grp;

-- lease_next_due
-- Differs from sqlite because dead rows are read, too: it can be asked not to look far.
SELECT min(due_at_ms)
  FROM lease
 WHERE grp + 0 = :grp
   AND partition + 0 = :partition
   AND due_at_ms >= :low
   AND due_at_ms < :until;

-- leases_open
-- What is held at this moment, and when the first of it is due again by itself. The sums are those of the index (0004).
SELECT coalesce(sum(live), 0)::BIGINT, min(due_at_ms)
  FROM lease
 WHERE grp + 0 = :grp
   AND partition + 0 = :partition
   AND due_at_ms > :now
   AND state = :leased;

-- gate
-- The newest of what was appended (no row is updated for every claim). Zero rows: nothing was ever counted at it.
SELECT state, n
  FROM gate
 WHERE grp = :grp
 ORDER BY n DESC
 LIMIT 1;

-- gate_put
INSERT INTO gate (grp, n, state)
VALUES (:grp, :n, :state);

-- gate_forget
DELETE FROM gate
 WHERE grp = :grp
   AND n = :n;

-- gate_delete
DELETE FROM gate
 WHERE grp = :grp;

-- leases_lock
-- Refused when an application's open transaction has a share of one.
SELECT id
  FROM lease
 WHERE partition = :partition
   AND grp = :grp
   FOR UPDATE NOWAIT;

-- leases_delete
DELETE FROM lease
 WHERE partition = :partition
   AND grp = :grp;

-- dead_insert
INSERT INTO dead (tenant, partition, grp, "offset", buried_at_ms, attempts, reason, history)
VALUES (:tenant, :partition, :grp, :offset, :buried_at, :attempts, :reason, :history)
ON CONFLICT (partition, grp, "offset") DO UPDATE
   SET buried_at_ms = excluded.buried_at_ms,
       attempts = excluded.attempts,
       reason = excluded.reason,
       history = excluded.history;

-- dead
SELECT tenant, partition, grp, "offset", buried_at_ms, attempts, reason, history
  FROM dead
 WHERE partition = :partition
   AND grp = :grp
   AND "offset" > :after
 ORDER BY "offset"
 LIMIT :limit;

-- dead_delete
DELETE FROM dead
 WHERE partition = :partition
   AND grp = :grp
   AND "offset" = :offset;

-- dead_count
SELECT count(*)
  FROM dead
 WHERE partition = :partition
   AND grp = :grp;

-- dead_purge
DELETE FROM dead
 WHERE partition = :partition
   AND grp = :grp;

-- consumer_seen
INSERT INTO consumer (tenant, grp, name, seen_at_ms)
VALUES (:tenant, :grp, :name, :now)
ON CONFLICT (grp, name) DO UPDATE SET seen_at_ms = excluded.seen_at_ms;

-- consumers
SELECT name, seen_at_ms
  FROM consumer
 WHERE grp = :grp
 ORDER BY name;

-- consumer_count
-- Of all groups of a topic.
SELECT count(*)
  FROM grp AS grp
  JOIN consumer AS consumer ON consumer.grp = grp.id
 WHERE grp.topic = :topic;

-- has_consumer
-- Zero rows: it was not seen lately.
SELECT 1
  FROM consumer
 WHERE grp = :grp
   AND name = :name;

-- consumers_forget
DELETE FROM consumer
 WHERE seen_at_ms < :before;

-- any_consumer
-- Zero rows: there is none.
SELECT 1
  FROM consumer
 LIMIT 1;

-- consumer_groups
-- Where a consumer was seen: topic and group by name.
SELECT topic.name, grp.name
  FROM consumer AS consumer
  JOIN grp AS grp ON grp.id = consumer.grp
  JOIN topic AS topic ON topic.id = grp.topic
  JOIN tenant AS tenant ON tenant.id = consumer.tenant
 WHERE tenant.name = :tenant
   AND consumer.name = :name
 ORDER BY topic.name, grp.name;
