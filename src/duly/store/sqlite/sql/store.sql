-- store_paused
-- Why nothing is delivered. Zero rows: the store is not paused.
SELECT value
  FROM duly_meta
 WHERE key = 'paused';

-- store_pause
INSERT INTO duly_meta (key, value)
VALUES ('paused', :why)
ON CONFLICT DO UPDATE SET value = :why;

-- store_resume
DELETE FROM duly_meta
 WHERE key = 'paused';

-- leased_groups
-- Which groups hold or wait for something, in which partitions.
SELECT DISTINCT partition, grp
  FROM duly_lease;
