-- agenda_put
-- Differs from sqlite because a row that many topics' transactions update would make them wait for each other.
INSERT INTO agenda (chore, due_at_ms)
VALUES (:chore, :due_at);

-- agenda_next
-- The store's own chores, and of the partitions the one to be looked at first. Zero rows: nothing is to be done.
SELECT 0::BIGINT, 0::BIGINT, chore, due_at_ms, 0::BIGINT
  FROM (SELECT chore, due_at_ms
          FROM agenda
         ORDER BY due_at_ms
         LIMIT 1) AS own
UNION ALL
SELECT tenant, id, CASE WHEN topic IS NULL THEN 'erase' ELSE 'truncate' END, look_at_ms, coalesce(topic, 0)
  FROM (SELECT tenant, id, topic, look_at_ms
          FROM part
         WHERE look_at_ms IS NOT NULL
         ORDER BY look_at_ms
         LIMIT 1) AS looked
 ORDER BY 4
 LIMIT 1;

-- agenda_delete
DELETE FROM agenda
 WHERE chore = :chore
   AND due_at_ms <= :now;

-- part_look
UPDATE part
   SET look_at_ms = :due_at
 WHERE id = :partition;
