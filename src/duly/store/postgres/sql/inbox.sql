-- inbox
-- What is visible of a topic's inbox, in the order of its transactions' numbers; and below which number nothing more comes.
SELECT xid, id, kind, data, payload, pg_snapshot_xmin(pg_current_snapshot())
  FROM inbox
 WHERE topic = :topic
   AND xid >= :floor::XID8
 ORDER BY xid, id
 LIMIT :limit;

-- inbox_delete
DELETE FROM inbox
 WHERE topic = :topic
   AND xid = :xid::XID8
   AND id = :id;

-- inbox_erase
DELETE FROM inbox
 WHERE topic = :topic;

-- has_mail
-- Zero rows: nothing waits in the topic's inbox.
SELECT 1::BIGINT
  FROM inbox
  JOIN topic ON topic.id = inbox.topic
  JOIN tenant ON tenant.id = topic.tenant
 WHERE tenant.name = :tenant
   AND topic.name = :topic
 LIMIT 1;

-- mail_refuse
INSERT INTO refused (topic, at_ms, why, kind, data, payload)
VALUES (:topic, :now, :why, :kind, :data, :payload);

-- mail_of
-- The partitions of topics that have mail, and below which transaction nothing more comes.
SELECT part.id, pg_snapshot_xmin(pg_current_snapshot())
  FROM (SELECT DISTINCT topic FROM inbox WHERE xid >= :floor::XID8) AS mail
  JOIN part ON part.topic = mail.topic
UNION ALL
SELECT 0, pg_snapshot_xmin(pg_current_snapshot());
