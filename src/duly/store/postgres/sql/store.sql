-- store_paused
-- Why nothing is delivered. Zero rows: the store is not paused.
SELECT value
  FROM meta
 WHERE key = 'paused';

-- store_pause
INSERT INTO meta (key, value)
VALUES ('paused', :why)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- store_resume
DELETE FROM meta
 WHERE key = 'paused';

-- leased_groups
-- Which groups hold or wait for something, in which partitions.
SELECT DISTINCT partition, grp
  FROM lease;

-- report_dead
-- Has this session report at the end of its transaction how many rows it left dead.
SELECT pg_stat_force_next_flush()::TEXT;
