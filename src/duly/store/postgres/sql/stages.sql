-- stage_find
-- Zero rows: there is no such stage, or not any more.
SELECT id, messages, next_number, expires_at_ms
  FROM stage
 WHERE topic = :topic
   AND name = :name;

-- stage_insert
INSERT INTO stage (tenant, topic, name, messages, next_number, expires_at_ms)
VALUES (:tenant, :topic, :name, 0, 0, :expires_at)
RETURNING id;

-- stage_update
UPDATE stage
   SET messages = :messages,
       next_number = :next_number,
       expires_at_ms = :expires_at
 WHERE id = :id;

-- stage_delete
DELETE FROM stage
 WHERE id = :id;

-- stage_expired
-- Zero rows: no stage has been left behind.
SELECT id, tenant, topic
  FROM stage
 WHERE expires_at_ms <= :now
 ORDER BY expires_at_ms
 LIMIT 1;

-- stage_next_expiry
SELECT min(expires_at_ms)
  FROM stage;

-- staged_insert
INSERT INTO staged (tenant, stage, number, chunk, piece)
VALUES (:tenant, :stage, :number, :chunk, :piece);

-- staged
-- Zero rows: all of it is published.
SELECT number, chunk, piece
  FROM staged
 WHERE stage = :stage
 ORDER BY number
 LIMIT :limit;

-- staged_delete
DELETE FROM staged
 WHERE stage = :stage
   AND number <= :number;

-- chunk_insert
INSERT INTO chunk (tenant, data)
VALUES (:tenant, :data)
RETURNING id;

-- chunk
-- Zero rows: it is gone, and the block with it.
SELECT data
  FROM chunk
 WHERE id = :id;

-- chunk_delete
DELETE FROM chunk
 WHERE id = :id;

-- job_find
-- Zero rows: it has published nothing yet, or long ago.
SELECT j.tenant, j.topic, t.name, j.name, j.version, j.messages, j.duplicates, j.left_over, j.stages
  FROM job AS j
  JOIN topic AS t ON t.id = j.topic
 WHERE j.tenant = :tenant
   AND j.topic = :topic
   AND j.name = :name;

-- job_put
INSERT INTO job (tenant, topic, name, version, messages, duplicates, left_over, stages, expires_at_ms)
VALUES (:tenant, :topic, :name, :version, :messages, :duplicates, :left_over, :stages, :expires_at)
    ON CONFLICT (tenant, topic, name) DO UPDATE
   SET version = excluded.version,
       messages = excluded.messages,
       duplicates = excluded.duplicates,
       left_over = excluded.left_over,
       stages = excluded.stages,
       expires_at_ms = excluded.expires_at_ms;

-- job_under_way
-- Zero rows: whatever was decided is done.
SELECT j.tenant, j.topic, t.name, j.name, j.version, j.messages, j.duplicates, j.left_over, j.stages
  FROM job AS j
  JOIN topic AS t ON t.id = j.topic
 WHERE j.stages IS NOT NULL
 ORDER BY j.id
 LIMIT 1;

-- jobs_expire
DELETE FROM job
 WHERE id IN (SELECT id
                FROM job
               WHERE expires_at_ms <= :now
                 AND stages IS NULL
               ORDER BY expires_at_ms
               LIMIT :limit);

-- job_next_expiry
SELECT min(expires_at_ms)
  FROM job
 WHERE stages IS NULL;

-- jobs_erase
DELETE FROM job
 WHERE topic = :topic;

-- stages_erase
UPDATE stage
   SET expires_at_ms = 0
 WHERE topic = :topic;
