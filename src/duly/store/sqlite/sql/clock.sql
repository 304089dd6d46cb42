-- clock_mark
-- Where the store's clock stood. Zero rows: no process has told the time by the host's clock here.
SELECT value
  FROM duly_meta
 WHERE key = 'clock';

-- clock_mark_put
INSERT INTO duly_meta (key, value)
VALUES ('clock', :mark)
ON CONFLICT DO UPDATE SET value = :mark;
