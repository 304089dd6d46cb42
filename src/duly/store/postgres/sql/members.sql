-- member_put
INSERT INTO member (name, seen_at_ms, facts)
VALUES (:name, :now, :facts)
ON CONFLICT (name) DO UPDATE SET seen_at_ms = :now,
                          facts = :facts;

-- member_remove
-- Zero rows: it was forgotten already.
DELETE FROM member
 WHERE name = :name;

-- members_forget
DELETE FROM member
 WHERE seen_at_ms < :before;

-- members
-- Those who were seen lately. Zero rows: no broker serves the store.
SELECT seen_at_ms, facts
  FROM member
 WHERE seen_at_ms >= :since
 ORDER BY name;
