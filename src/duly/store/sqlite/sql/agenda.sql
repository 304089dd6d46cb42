-- agenda_put
-- The earlier of the two stays.
INSERT INTO duly_agenda (chore, due_at_ms)
VALUES (:chore, :due_at)
ON CONFLICT DO UPDATE SET due_at_ms = min(due_at_ms, excluded.due_at_ms);

-- agenda_next
-- The store's own chores, and of the partitions the one to be looked at first. Zero rows: nothing is to be done.
SELECT 0, 0, chore, due_at_ms
  FROM duly_agenda
UNION ALL
SELECT tenant, id, iif(topic IS NULL, 'erase', 'truncate'), look_at_ms
  FROM (SELECT tenant, id, topic, look_at_ms
          FROM duly_part
         WHERE look_at_ms IS NOT NULL
         ORDER BY look_at_ms
         LIMIT 1)
 ORDER BY 4
 LIMIT 1;

-- agenda_delete
DELETE FROM duly_agenda
 WHERE chore = :chore;

-- part_look
UPDATE duly_part
   SET look_at_ms = :due_at
 WHERE id = :partition
   AND tenant = :tenant;
