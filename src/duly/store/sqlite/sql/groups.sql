-- cursor
-- Zero rows: the group does not exist in this partition.
SELECT next_offset
  FROM duly_cursor
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- cursor_update
INSERT INTO duly_cursor (tenant, partition, grp, next_offset)
VALUES (:tenant, :partition, :grp, :offset)
ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset;

-- cursor_delete
DELETE FROM duly_cursor
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- lease
-- Zero rows: the lease is settled, or was taken over.
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM duly_lease
 WHERE id = :id
   AND tenant = :tenant;

-- lease_insert
INSERT INTO duly_lease (tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live,
                   attempts, alone, suspect, offsets, settled, history, keys, marked)
VALUES (:tenant, :partition, :grp, :due_at, :state, :consumer, :claimed_at, :base, :count, :live,
        :attempts, :alone, :suspect, :offsets, :settled, :history, :keys, :marked);

-- lease_settle
UPDATE duly_lease
   SET settled = :settled,
       live = :live
 WHERE id = :id;

-- lease_mark
UPDATE duly_lease
   SET marked = 1
 WHERE id = :id;

-- lease_extend
UPDATE duly_lease
   SET due_at_ms = :due_at
 WHERE id = :id;

-- lease_delete
DELETE FROM duly_lease
 WHERE id = :id
   AND tenant = :tenant;

-- lease_end
-- Zero rows: the lease is settled, was taken over, or is another group's.
DELETE FROM duly_lease
 WHERE id = :id
   AND tenant = :tenant
   AND grp = :grp
   AND state = :leased
RETURNING id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
          alone, suspect, offsets, settled, history, keys, marked;

-- leases_due
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM duly_lease
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp
   AND due_at_ms <= :now
 ORDER BY due_at_ms, id
 LIMIT :limit;

-- leases
SELECT id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM duly_lease
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- lease_next_due
SELECT min(due_at_ms)
  FROM duly_lease
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- leases_open
-- What is held at this moment, and when the first of it is due again by itself.
SELECT coalesce(sum(live), 0), min(due_at_ms)
  FROM duly_lease
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp
   AND due_at_ms > :now
   AND state = :leased;

-- gate
-- Zero rows: nothing was ever counted at it.
SELECT state
  FROM duly_gate
 WHERE tenant = :tenant
   AND grp = :grp;

-- gate_put
INSERT INTO duly_gate (tenant, grp, state)
VALUES (:tenant, :grp, :state)
ON CONFLICT DO UPDATE SET state = excluded.state;

-- gate_delete
DELETE FROM duly_gate
 WHERE tenant = :tenant
   AND grp = :grp;

-- leases_delete
DELETE FROM duly_lease
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- dead_insert
INSERT OR REPLACE INTO duly_dead (tenant, partition, grp, "offset", buried_at_ms, attempts, reason, history)
VALUES (:tenant, :partition, :grp, :offset, :buried_at, :attempts, :reason, :history);

-- dead
SELECT tenant, partition, grp, "offset", buried_at_ms, attempts, reason, history
  FROM duly_dead
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp
   AND "offset" > :after
 ORDER BY "offset"
 LIMIT :limit;

-- dead_delete
DELETE FROM duly_dead
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp
   AND "offset" = :offset;

-- dead_count
SELECT count(*)
  FROM duly_dead
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- dead_purge
DELETE FROM duly_dead
 WHERE tenant = :tenant
   AND partition = :partition
   AND grp = :grp;

-- consumer_seen
INSERT INTO duly_consumer (tenant, grp, name, seen_at_ms)
VALUES (:tenant, :grp, :name, :now)
ON CONFLICT DO UPDATE SET seen_at_ms = excluded.seen_at_ms;

-- consumers
SELECT name, seen_at_ms
  FROM duly_consumer
 WHERE tenant = :tenant
   AND grp = :grp
 ORDER BY name;

-- consumer_count
-- Of all groups of a topic.
SELECT count(*)
  FROM duly_grp AS grp
  JOIN duly_consumer AS consumer ON consumer.tenant = :tenant AND consumer.grp = grp.id
 WHERE grp.topic = :topic;

-- has_consumer
-- Zero rows: it was not seen lately.
SELECT 1
  FROM duly_consumer
 WHERE tenant = :tenant
   AND grp = :grp
   AND name = :name;

-- consumers_forget
DELETE FROM duly_consumer
 WHERE seen_at_ms < :before;

-- any_consumer
-- Zero rows: there is none.
SELECT 1
  FROM duly_consumer
 LIMIT 1;

-- consumer_groups
-- Where a consumer was seen: topic and group by name.
SELECT topic.name, grp.name
  FROM duly_consumer AS consumer
  JOIN duly_grp AS grp ON grp.id = consumer.grp
  JOIN duly_topic AS topic ON topic.id = grp.topic
  JOIN duly_tenant AS tenant ON tenant.id = consumer.tenant
 WHERE tenant.name = :tenant
   AND consumer.name = :name
 ORDER BY topic.name, grp.name;
