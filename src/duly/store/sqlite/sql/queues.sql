-- queue
-- Zero rows: nothing was absorbed yet.
SELECT absorbed_to, taken, times
  FROM duly_queue
 WHERE tenant = :tenant
   AND partition = :partition;

-- queue_put
INSERT INTO duly_queue (tenant, partition, absorbed_to, taken, times)
VALUES (:tenant, :partition, :absorbed_to, :taken, :times)
ON CONFLICT DO UPDATE
   SET absorbed_to = excluded.absorbed_to,
       taken = excluded.taken,
       times = excluded.times;

-- queue_delete
DELETE FROM duly_queue
 WHERE tenant = :tenant
   AND partition = :partition;

-- runs
SELECT partition, kind, level, count, pos, blocks, block, low, high, expires_max_ms, sources, target, coming, plain,
       id
  FROM duly_run
 WHERE tenant = :tenant
   AND partition = :partition
 ORDER BY id;

-- run_insert
INSERT INTO duly_run (tenant, partition, kind, level, count, pos, blocks, block, low, high, expires_max_ms,
                      sources, target, coming, plain)
VALUES (:tenant, :partition, :kind, :level, :count, :pos, :blocks, :block, :low, :high, :expires_max,
        :sources, :target, :coming, :plain);

-- run_move
UPDATE duly_run
   SET pos = :pos
 WHERE id = :id;

-- run_update
UPDATE duly_run
   SET kind = :kind,
       count = :count,
       pos = :pos,
       blocks = :blocks,
       low = :low,
       high = :high,
       expires_max_ms = :expires_max,
       sources = :sources,
       target = :target,
       coming = :coming,
       plain = :plain
 WHERE id = :id;

-- run_delete
DELETE FROM duly_run
 WHERE id = :id;

-- run_blocks_delete
DELETE FROM duly_run_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run;

-- run_blocks_trim
-- What a run has beyond its first :blocks blocks.
DELETE FROM duly_run_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run
   AND idx >= :blocks;

-- run_data_trim
DELETE FROM duly_run_data
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run
   AND idx >= :blocks;

-- run_data_delete
DELETE FROM duly_run_data
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run;

-- run_block_insert
INSERT INTO duly_run_block (tenant, partition, run, idx, entries)
VALUES (:tenant, :partition, :run, :idx, :entries);

-- run_data_insert
INSERT INTO duly_run_data (tenant, partition, run, idx, data)
VALUES (:tenant, :partition, :run, :idx, :data);

-- run_entries
-- Zero rows: the run is damaged.
SELECT entries
  FROM duly_run_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run
   AND idx = :idx;

-- run_still
-- Zero rows: the run is used up or folded, or was shortened to fewer blocks.
SELECT 1
  FROM duly_run
 WHERE id = :run
   AND blocks > :idx;

-- run_data
-- Zero rows: the run is damaged.
SELECT data
  FROM duly_run_data
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run
   AND idx = :idx;

-- holes
SELECT run, seq, due_at_ms, late
  FROM duly_hole
 WHERE tenant = :tenant
   AND partition = :partition;

-- hole_insert
INSERT INTO duly_hole (tenant, partition, run, seq, due_at_ms, late)
VALUES (:tenant, :partition, :run, :seq, :due_at, :late);

-- holes_move
-- Those of messages that had been copied already; the others were left out.
UPDATE duly_hole
   SET run = :target,
       late = 0
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run
   AND late = 1;

-- hole_delete
DELETE FROM duly_hole
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run
   AND seq = :seq;

-- holes_delete
DELETE FROM duly_hole
 WHERE tenant = :tenant
   AND partition = :partition
   AND run = :run;

-- loose
-- Zero rows: it is in a run as it was published, or gone.
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND "offset" = :offset;

-- loose_put
INSERT INTO duly_loose (tenant, partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half,
                        cancelled, history, slot)
VALUES (:tenant, :partition, :offset, :due_at, :waits, :priority, :lane, :attempts, :suspects, :half,
        :cancelled, :history, :slot)
ON CONFLICT DO UPDATE
   SET due_at_ms = excluded.due_at_ms,
       waits = excluded.waits,
       priority = excluded.priority,
       lane = excluded.lane,
       attempts = excluded.attempts,
       suspects = excluded.suspects,
       half = excluded.half,
       cancelled = excluded.cancelled,
       history = excluded.history,
       slot = excluded.slot;

-- loose_due
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND waits = 1
   AND due_at_ms <= :now
 ORDER BY due_at_ms, "offset"
 LIMIT :limit;

-- loose_due_fresh
-- Those that never failed: they were moved, or given back.
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND waits = 1
   AND attempts = 0
   AND due_at_ms <= :now
 ORDER BY due_at_ms, "offset"
 LIMIT :limit;

-- loose_next_after
SELECT min(due_at_ms)
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND waits = 1
   AND due_at_ms > :now;

-- loose_all
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND "offset" > :after
 ORDER BY "offset"
 LIMIT :limit;

-- loose_count
-- Those that are in no run.
SELECT count(*)
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND waits = 1;

-- loose_next_due
SELECT min(due_at_ms)
  FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND waits = 1;

-- loose_delete
DELETE FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition
   AND "offset" = :offset;

-- queue_runs_erase
DELETE FROM duly_run
 WHERE tenant = :tenant
   AND partition = :partition;

-- queue_blocks_erase
DELETE FROM duly_run_block
 WHERE tenant = :tenant
   AND partition = :partition;

-- queue_data_erase
DELETE FROM duly_run_data
 WHERE tenant = :tenant
   AND partition = :partition;

-- queue_holes_erase
DELETE FROM duly_hole
 WHERE tenant = :tenant
   AND partition = :partition;

-- queue_loose_erase
DELETE FROM duly_loose
 WHERE tenant = :tenant
   AND partition = :partition;

-- id_runs
SELECT topic, level, count, filter, id
  FROM duly_id_run
 WHERE tenant = :tenant
   AND topic = :topic;

-- id_run_insert
INSERT INTO duly_id_run (tenant, topic, level, count, filter)
VALUES (:tenant, :topic, :level, :count, :filter);

-- id_run_delete
DELETE FROM duly_id_run
 WHERE id = :run;

-- id_blocks_delete
DELETE FROM duly_id_block
 WHERE tenant = :tenant
   AND topic = :topic
   AND run = :run;

-- id_block_insert
INSERT INTO duly_id_block (tenant, topic, run, idx, first, data)
VALUES (:tenant, :topic, :run, :idx, :first, :data);

-- id_block
-- Zero rows: the index of ids is damaged.
SELECT data
  FROM duly_id_block
 WHERE tenant = :tenant
   AND topic = :topic
   AND run = :run
   AND idx = :idx;

-- id_firsts
SELECT first
  FROM duly_id_block
 WHERE tenant = :tenant
   AND topic = :topic
   AND run = :run
 ORDER BY idx;

-- ids_indexed_to
-- Zero rows: no id was indexed yet.
SELECT indexed_to
  FROM duly_ids_to
 WHERE tenant = :tenant
   AND partition = :partition;

-- ids_index_to
INSERT INTO duly_ids_to (tenant, partition, indexed_to)
VALUES (:tenant, :partition, :offset)
ON CONFLICT DO UPDATE SET indexed_to = excluded.indexed_to;

-- ids_erase
DELETE FROM duly_id_run
 WHERE tenant = :tenant
   AND topic = :topic;

-- id_blocks_erase
DELETE FROM duly_id_block
 WHERE tenant = :tenant
   AND topic = :topic;

-- ids_to_delete
DELETE FROM duly_ids_to
 WHERE tenant = :tenant
   AND partition = :partition;

-- done_insert
INSERT OR REPLACE INTO duly_done (tenant, partition, first, last, until_ms)
VALUES (:tenant, :partition, :first, :last, :until);

-- done_until
-- Zero rows: it is not settled, or its window is over.
SELECT last, until_ms
  FROM duly_done
 WHERE tenant = :tenant
   AND partition = :partition
   AND first <= :offset
 ORDER BY first DESC
 LIMIT 1;

-- done_low
SELECT min(first)
  FROM duly_done
 WHERE tenant = :tenant
   AND partition = :partition;

-- done_expire
DELETE FROM duly_done
 WHERE (tenant, partition, first) IN (SELECT tenant, partition, first
                                        FROM duly_done
                                       WHERE until_ms <= :now
                                       ORDER BY until_ms
                                       LIMIT :limit);

-- done_next
SELECT min(until_ms)
  FROM duly_done;

-- done_erase
DELETE FROM duly_done
 WHERE tenant = :tenant
   AND partition = :partition;

-- lane
-- Zero rows: nothing of the lane waits or is in flight.
SELECT partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state
  FROM duly_lane
 WHERE tenant = :tenant
   AND partition = :partition
   AND lane = :lane;

-- lane_put
INSERT INTO duly_lane (tenant, partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state)
VALUES (:tenant, :partition, :lane, :in_flight, :next_at, :look_at, :circuit, :circuit_state)
ON CONFLICT DO UPDATE
   SET in_flight = excluded.in_flight,
       next_at_ms = excluded.next_at_ms,
       look_at_ms = excluded.look_at_ms,
       circuit = excluded.circuit,
       circuit_state = excluded.circuit_state;

-- lane_delete
DELETE FROM duly_lane
 WHERE tenant = :tenant
   AND partition = :partition
   AND lane = :lane;

-- lanes_to_look
SELECT partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state
  FROM duly_lane
 WHERE tenant = :tenant
   AND partition = :partition
   AND look_at_ms <= :now
 ORDER BY look_at_ms
 LIMIT :limit;

-- lanes_look
UPDATE duly_lane
   SET look_at_ms = :now
 WHERE tenant = :tenant
   AND partition = :partition;

-- lane_next_look
SELECT min(look_at_ms)
  FROM duly_lane
 WHERE tenant = :tenant
   AND partition = :partition
   AND look_at_ms IS NOT NULL;

-- lanes_mend
-- Their breakers are forgotten.
UPDATE duly_lane
   SET circuit = NULL,
       circuit_state = 0
 WHERE tenant = :tenant
   AND partition = :partition;

-- lanes_broken
-- Zero rows: the breaker of none is open or ramps.
SELECT partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state
  FROM duly_lane
 WHERE tenant = :tenant
   AND partition = :partition
   AND circuit_state > 0
 ORDER BY lane
 LIMIT :limit;

-- lane_wait_insert
INSERT INTO duly_lane_wait (tenant, partition, lane, priority, due_at_ms, "offset", loose)
VALUES (:tenant, :partition, :lane, :priority, :due_at, :offset, :loose);

-- lane_wait_delete
DELETE FROM duly_lane_wait
 WHERE tenant = :tenant
   AND partition = :partition
   AND lane = :lane
   AND priority = :priority
   AND due_at_ms = :due_at
   AND "offset" = :offset;

-- lane_wait_heads
SELECT partition, lane, priority, due_at_ms, "offset", loose
  FROM duly_lane_wait
 WHERE tenant = :tenant
   AND partition = :partition
   AND lane = :lane
 ORDER BY priority, due_at_ms, "offset"
 LIMIT :limit;

-- lane_waits
SELECT partition, lane, priority, due_at_ms, "offset", loose
  FROM duly_lane_wait
 WHERE tenant = :tenant
   AND partition = :partition
   AND "offset" > :after
 ORDER BY "offset"
 LIMIT :limit;

-- lane_wait_count
SELECT count(*)
  FROM duly_lane_wait
 WHERE tenant = :tenant
   AND partition = :partition;

-- lanes_erase
DELETE FROM duly_lane
 WHERE tenant = :tenant
   AND partition = :partition;

-- lane_waits_erase
DELETE FROM duly_lane_wait
 WHERE tenant = :tenant
   AND partition = :partition;
