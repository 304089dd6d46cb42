-- stage_find
-- Zero rows: there is no such stage, or not any more.
SELECT id, messages, next_number, expires_at_ms
  FROM duly_stage
 WHERE tenant = :tenant
   AND topic = :topic
   AND name = :name;

-- stage_insert
INSERT INTO duly_stage (tenant, topic, name, messages, next_number, expires_at_ms)
VALUES (:tenant, :topic, :name, 0, 0, :expires_at)
RETURNING id;

-- stage_update
UPDATE duly_stage
   SET messages = :messages,
       next_number = :next_number,
       expires_at_ms = :expires_at
 WHERE id = :id;

-- stage_delete
DELETE FROM duly_stage
 WHERE id = :id;

-- stage_expired
-- Zero rows: no stage has been left behind.
SELECT id, tenant
  FROM duly_stage
 WHERE expires_at_ms <= :now
 ORDER BY expires_at_ms
 LIMIT 1;

-- stage_next_expiry
SELECT min(expires_at_ms)
  FROM duly_stage;

-- staged_insert
INSERT INTO duly_staged (tenant, stage, number, chunk, piece)
VALUES (:tenant, :stage, :number, :chunk, :piece);

-- staged
-- Zero rows: all of it is published.
SELECT number, chunk, piece
  FROM duly_staged
 WHERE tenant = :tenant
   AND stage = :stage
 ORDER BY number
 LIMIT :limit;

-- staged_delete
DELETE FROM duly_staged
 WHERE tenant = :tenant
   AND stage = :stage
   AND number <= :number;

-- chunk_insert
INSERT INTO duly_chunk (tenant, data)
VALUES (:tenant, :data)
RETURNING id;

-- chunk
-- Zero rows: it is gone, and the block with it.
SELECT data
  FROM duly_chunk
 WHERE id = :id;

-- chunk_delete
DELETE FROM duly_chunk
 WHERE id = :id;

-- job_find
-- Zero rows: it has published nothing yet, or long ago.
SELECT j.tenant, j.topic, t.name, j.name, j.version, j.messages, j.duplicates, j.left_over, j.stages
  FROM duly_job AS j
  JOIN duly_topic AS t ON t.id = j.topic
 WHERE j.tenant = :tenant
   AND j.topic = :topic
   AND j.name = :name;

-- job_put
INSERT INTO duly_job (tenant, topic, name, version, messages, duplicates, left_over, stages, expires_at_ms)
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
  FROM duly_job AS j
  JOIN duly_topic AS t ON t.id = j.topic
 WHERE j.stages IS NOT NULL
 ORDER BY j.id
 LIMIT 1;

-- jobs_expire
DELETE FROM duly_job
 WHERE id IN (SELECT id
                FROM duly_job
               WHERE expires_at_ms <= :now
                 AND stages IS NULL
               ORDER BY expires_at_ms
               LIMIT :limit);

-- job_next_expiry
SELECT min(expires_at_ms)
  FROM duly_job
 WHERE stages IS NULL;

-- jobs_erase
DELETE FROM duly_job
 WHERE tenant = :tenant
   AND topic = :topic;

-- stages_erase
UPDATE duly_stage
   SET expires_at_ms = 0
 WHERE tenant = :tenant
   AND topic = :topic;
