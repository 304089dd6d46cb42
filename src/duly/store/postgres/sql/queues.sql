-- queue
-- The newest of what was appended (no row is updated for every claim). Zero rows: nothing was absorbed yet.
SELECT absorbed_to, taken, times, positions, n
  FROM queue
 WHERE partition = :partition
 ORDER BY n DESC
 LIMIT 1;

-- queue_put
INSERT INTO queue (partition, n, absorbed_to, taken, times, positions)
VALUES (:partition, :n, :absorbed_to, :taken, :times, :positions);

-- queue_forget
DELETE FROM queue
 WHERE partition = :partition
   AND n = :n;

-- queue_delete
DELETE FROM queue
 WHERE partition = :partition;

-- runs
SELECT partition, kind, level, count, pos, blocks, block, low, high, expires_max_ms, sources, target, coming, plain,
       id
  FROM run
 WHERE partition = :partition
 ORDER BY id;

-- run_insert
INSERT INTO run (id, partition, kind, level, count, pos, blocks, block, low, high, expires_max_ms,
                 sources, target, coming, plain)
VALUES (:id, :partition, :kind, :level, :count, :pos, :blocks, :block, :low, :high, :expires_max,
        :sources, :target, :coming, :plain);

-- run_update
UPDATE run
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
 WHERE partition = :partition
   AND id = :id;

-- run_delete
DELETE FROM run
 WHERE partition = :partition
   AND id = :id;

-- run_blocks_delete
DELETE FROM run_block
 WHERE partition = :partition
   AND run = :run;

-- run_blocks_trim
-- What a run has beyond its first :blocks blocks.
DELETE FROM run_block
 WHERE partition = :partition
   AND run = :run
   AND idx >= :blocks;

-- run_data_trim
DELETE FROM run_data
 WHERE partition = :partition
   AND run = :run
   AND idx >= :blocks;

-- run_data_delete
DELETE FROM run_data
 WHERE partition = :partition
   AND run = :run;

-- run_block_insert
INSERT INTO run_block (partition, run, idx, entries)
VALUES (:partition, :run, :idx, :entries);

-- run_data_insert
INSERT INTO run_data (partition, run, idx, data)
VALUES (:partition, :run, :idx, :data);

-- run_entries
-- Zero rows: the run is damaged.
SELECT entries
  FROM run_block
 WHERE partition = :partition
   AND run = :run
   AND idx = :idx;

-- run_data
-- Zero rows: the run is damaged.
SELECT data
  FROM run_data
 WHERE partition = :partition
   AND run = :run
   AND idx = :idx;

-- holes
SELECT run, seq, due_at_ms, late
  FROM hole
 WHERE partition = :partition;

-- hole_insert
INSERT INTO hole (partition, run, seq, due_at_ms, late)
VALUES (:partition, :run, :seq, :due_at, :late);

-- holes_move
-- Those of messages that had been copied already; the others were left out.
UPDATE hole
   SET run = :target,
       late = 0
 WHERE partition = :partition
   AND run = :run
   AND late = 1;

-- hole_delete
DELETE FROM hole
 WHERE partition = :partition
   AND run = :run
   AND seq = :seq;

-- holes_delete
DELETE FROM hole
 WHERE partition = :partition
   AND run = :run;

-- loose
-- Zero rows: they are in a run as they were published, or gone.
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM loose
 WHERE partition = :partition
   AND "offset" = ANY(:offsets::BIGINT[]);

-- loose_put
INSERT INTO loose (partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half,
                   cancelled, history, slot)
VALUES (:partition, :offset, :due_at, :waits, :priority, :lane, :attempts, :suspects, :half,
        :cancelled, :history, :slot)
ON CONFLICT (partition, "offset") DO UPDATE
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
  FROM loose
 WHERE partition = :partition
   AND waits = 1
   AND due_at_ms <= :now
 ORDER BY due_at_ms, "offset"
 LIMIT :limit;

-- loose_due_fresh
-- Those that never failed: they were moved, or given back.
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM loose
 WHERE partition = :partition
   AND waits = 1
   AND attempts = 0
   AND due_at_ms <= :now
 ORDER BY due_at_ms, "offset"
 LIMIT :limit;

-- loose_next_after
SELECT min(due_at_ms)
  FROM loose
 WHERE partition = :partition
   AND waits = 1
   AND due_at_ms > :now;

-- loose_all
SELECT partition, "offset", due_at_ms, waits, priority, lane, attempts, suspects, half, cancelled, history, slot
  FROM loose
 WHERE partition = :partition
   AND "offset" > :after
 ORDER BY "offset"
 LIMIT :limit;

-- loose_count
-- Those that are in no run.
SELECT count(*)
  FROM loose
 WHERE partition = :partition
   AND waits = 1;

-- loose_next_due
SELECT min(due_at_ms)
  FROM loose
 WHERE partition = :partition
   AND waits = 1;

-- loose_delete
DELETE FROM loose
 WHERE partition = :partition
   AND "offset" = ANY(:offsets::BIGINT[]);

-- queue_runs_erase
DELETE FROM run
 WHERE partition = :partition;

-- queue_blocks_erase
DELETE FROM run_block
 WHERE partition = :partition;

-- queue_data_erase
DELETE FROM run_data
 WHERE partition = :partition;

-- queue_holes_erase
DELETE FROM hole
 WHERE partition = :partition;

-- queue_loose_erase
DELETE FROM loose
 WHERE partition = :partition;

-- id_runs
SELECT topic, level, count, filter, id
  FROM id_run
 WHERE topic = :topic;

-- id_run_insert
INSERT INTO id_run (id, topic, level, count, filter)
VALUES (:id, :topic, :level, :count, :filter);

-- id_run_delete
DELETE FROM id_run
 WHERE topic = :topic
   AND id = :run;

-- id_blocks_delete
DELETE FROM id_block
 WHERE topic = :topic
   AND run = :run;

-- id_block_insert
INSERT INTO id_block (topic, run, idx, first, data)
VALUES (:topic, :run, :idx, :first, :data);

-- id_block
-- Zero rows: the index of ids is damaged.
SELECT data
  FROM id_block
 WHERE topic = :topic
   AND run = :run
   AND idx = :idx;

-- id_firsts
SELECT first
  FROM id_block
 WHERE topic = :topic
   AND run = :run
 ORDER BY idx;

-- ids_indexed_to
-- Zero rows: no id was indexed yet.
SELECT indexed_to
  FROM ids_to
 WHERE partition = :partition;

-- ids_index_to
INSERT INTO ids_to (partition, indexed_to)
VALUES (:partition, :offset)
ON CONFLICT (partition) DO UPDATE SET indexed_to = excluded.indexed_to;

-- ids_erase
DELETE FROM id_run
 WHERE topic = :topic;

-- id_blocks_erase
DELETE FROM id_block
 WHERE topic = :topic;

-- ids_to_delete
DELETE FROM ids_to
 WHERE partition = :partition;

-- done_insert
INSERT INTO done (partition, first, last, until_ms)
VALUES (:partition, :first, :last, :until)
ON CONFLICT (partition, first) DO UPDATE
   SET last = excluded.last,
       until_ms = excluded.until_ms;

-- done_until
-- Zero rows: it is not settled, or its window is over.
SELECT last, until_ms
  FROM done
 WHERE partition = :partition
   AND first <= :offset
 ORDER BY first DESC
 LIMIT 1;

-- done_low
SELECT min(first)
  FROM done
 WHERE partition = :partition;

-- done_expire
DELETE FROM done
 WHERE (partition, first) IN (SELECT partition, first
                                FROM done
                               WHERE until_ms <= :now
                               ORDER BY until_ms
                               LIMIT :limit);

-- done_next
SELECT min(until_ms)
  FROM done;

-- done_erase
DELETE FROM done
 WHERE partition = :partition;

-- lane
-- Zero rows: nothing of the lane waits or is in flight.
SELECT partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state
  FROM lane
 WHERE partition = :partition
   AND lane = :lane;

-- lane_put
INSERT INTO lane (partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state)
VALUES (:partition, :lane, :in_flight, :next_at, :look_at, :circuit, :circuit_state)
ON CONFLICT (partition, lane) DO UPDATE
   SET in_flight = excluded.in_flight,
       next_at_ms = excluded.next_at_ms,
       look_at_ms = excluded.look_at_ms,
       circuit = excluded.circuit,
       circuit_state = excluded.circuit_state;

-- lane_delete
DELETE FROM lane
 WHERE partition = :partition
   AND lane = :lane;

-- lanes_to_look
SELECT partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state
  FROM lane
 WHERE partition = :partition
   AND look_at_ms <= :now
 ORDER BY look_at_ms
 LIMIT :limit;

-- lanes_look
UPDATE lane
   SET look_at_ms = :now
 WHERE partition = :partition;

-- lane_next_look
SELECT min(look_at_ms)
  FROM lane
 WHERE partition = :partition
   AND look_at_ms IS NOT NULL;

-- lanes_mend
-- Their breakers are forgotten.
UPDATE lane
   SET circuit = NULL,
       circuit_state = 0
 WHERE partition = :partition;

-- lanes_broken
-- Zero rows: the breaker of none is open or ramps.
SELECT partition, lane, in_flight, next_at_ms, look_at_ms, circuit, circuit_state
  FROM lane
 WHERE partition = :partition
   AND circuit_state > 0
 ORDER BY lane
 LIMIT :limit;

-- lane_wait_insert
INSERT INTO lane_wait (partition, lane, priority, due_at_ms, "offset", loose)
VALUES (:partition, :lane, :priority, :due_at, :offset, :loose);

-- lane_wait_delete
DELETE FROM lane_wait
 WHERE partition = :partition
   AND lane = :lane
   AND priority = :priority
   AND due_at_ms = :due_at
   AND "offset" = :offset;

-- lane_wait_heads
SELECT partition, lane, priority, due_at_ms, "offset", loose
  FROM lane_wait
 WHERE partition = :partition
   AND lane = :lane
 ORDER BY priority, due_at_ms, "offset"
 LIMIT :limit;

-- lane_waits
SELECT partition, lane, priority, due_at_ms, "offset", loose
  FROM lane_wait
 WHERE partition = :partition
   AND "offset" > :after
 ORDER BY "offset"
 LIMIT :limit;

-- lane_wait_count
SELECT count(*)
  FROM lane_wait
 WHERE partition = :partition;

-- lanes_erase
DELETE FROM lane
 WHERE partition = :partition;

-- lane_waits_erase
DELETE FROM lane_wait
 WHERE partition = :partition;
