-- member_put
INSERT INTO duly_member (name, seen_at_ms, facts)
VALUES (:name, :now, :facts)
ON CONFLICT DO UPDATE SET seen_at_ms = :now,
                          facts = :facts;

-- member_remove
-- Zero rows: it was forgotten already.
DELETE FROM duly_member
 WHERE name = :name;

-- members_forget
DELETE FROM duly_member
 WHERE seen_at_ms < :before;

-- members
-- Those who were seen lately. Zero rows: no broker serves the store.
SELECT seen_at_ms, facts
  FROM duly_member
 WHERE seen_at_ms >= :since
 ORDER BY name;
