-- inbox
-- What is visible of a topic's inbox behind a place, in the order of its transactions' numbers; and below which number
-- nothing more comes.
SELECT xid, id, kind, data, payload, pg_snapshot_xmin(pg_current_snapshot())
  FROM inbox
 WHERE topic = :topic
   AND (xid, id) > (:xid::XID8, :id)
 ORDER BY xid, id
 LIMIT :limit;

-- inbox_verdicts
SELECT data
  FROM inbox
 WHERE topic = :topic
   AND xid >= :floor::XID8
   AND kind = 'settle';

-- inbox_put
INSERT INTO inbox (topic, kind, data, leases)
VALUES (:topic, :kind, :data, :leases::BIGINT[]);

-- inbox_delete
DELETE FROM inbox
 WHERE topic = :topic
   AND xid = :xid::XID8
   AND id = :id;

-- inbox_erase
-- A transaction that was open when its topic was deleted may have left something since: whoever deletes the next takes it along.
DELETE FROM inbox
 WHERE topic = :topic
    OR NOT EXISTS (SELECT 1 FROM topic WHERE topic.id = inbox.topic);

-- refused_erase
-- What could not be taken in goes with its topic, as all that it held.
DELETE FROM refused
 WHERE topic = :topic
    OR NOT EXISTS (SELECT 1 FROM topic WHERE topic.id = refused.topic);

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
-- The partitions of topics that have mail, and what tells that mail from other; last, below which transaction nothing more
-- comes.
SELECT part.id, mail.numbers
  FROM (SELECT topic, sum(id)::BIGINT AS numbers FROM inbox WHERE xid >= :floor::XID8 GROUP BY topic) AS mail
  JOIN part ON part.topic = mail.topic
UNION ALL
SELECT 0, pg_snapshot_xmin(pg_current_snapshot())::TEXT::BIGINT;

-- tenant_of_topic
-- Whose a topic is. Zero rows: it was deleted.
SELECT tenant
  FROM topic
 WHERE id = :topic;
