-- agenda_put
-- The earlier of the two stays.
INSERT INTO duly_agenda (tenant, partition, chore, due_at_ms)
VALUES (:tenant, :partition, :chore, :due_at)
ON CONFLICT DO UPDATE SET due_at_ms = min(due_at_ms, excluded.due_at_ms);

-- agenda_next
-- Zero rows: nothing will ever have to be done.
SELECT tenant, partition, chore, due_at_ms
  FROM duly_agenda
 ORDER BY due_at_ms
 LIMIT 1;

-- agenda_delete
DELETE FROM duly_agenda
 WHERE tenant = :tenant
   AND partition = :partition
   AND chore = :chore;
