-- enter
-- Waits for the topic's lock. Nothing of the last turn: nobody has written to it yet.
SELECT now_us, n, session, next_id, definitions, has_mail
  FROM enter(:space::INTEGER, :topic, :floor::XID8);

-- guard
SELECT guard(:space::INTEGER, :topic, :n, :session, :definitions, :floor::XID8, :at_ms)::TEXT;

-- turn_put
INSERT INTO turn (topic, n, session, next_id)
VALUES (:topic, :n, :session, :next_id);

-- turn_forget
DELETE FROM turn
 WHERE topic = :topic
   AND n = :n;

-- topic_by_name
-- Zero rows: there is no such topic, or not any more.
SELECT topic.id
  FROM tenant
  JOIN topic ON topic.tenant = tenant.id
 WHERE tenant.name = :tenant
   AND topic.name = :topic;

-- now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT;

-- lock
SELECT pg_advisory_xact_lock(:space::INTEGER, :key::INTEGER)::TEXT;

-- keep
-- A lock that outlasts the transaction, for a few milliseconds. A process that is stopped meanwhile is thrown out.
SELECT pg_advisory_lock(:space::INTEGER, :key::INTEGER)::TEXT || set_config('idle_session_timeout', '5s', false);

-- unlock
SELECT pg_advisory_unlock(:space::INTEGER, :key::INTEGER)::TEXT || set_config('idle_session_timeout', '0', false);

-- unlock_all
SELECT pg_advisory_unlock_all()::TEXT || set_config('idle_session_timeout', '0', false);

-- a_thousand_ids
SELECT nextval('ids_by_thousand');
