-- head
-- Zero rows: the partition does not exist.
SELECT first_offset, next_offset, published_at_ms, archived_to, archive_from, look_at_ms
  FROM part
 WHERE id = :partition;

-- block_newest
-- Zero rows: the log is empty. (Joined with the one above it takes three times as long as both.)
SELECT base + count, published_at_ms
  FROM block
 WHERE partition = :partition
 ORDER BY base DESC
 LIMIT 1;

-- head_update
UPDATE part
   SET first_offset = :first_offset,
       next_offset = :next_offset,
       published_at_ms = :published_at,
       archived_to = :archived_to,
       archive_from = :archive_from
 WHERE id = :partition;

-- block_insert
INSERT INTO block (partition, base, count, bytes, published_at_ms, data, chunk)
VALUES (:partition, :base, :count, :bytes, :published_at, :data, :chunk);

-- blocks
-- From the block that holds :low on. Zero rows: the log has nothing there.
SELECT base, data
  FROM block
 WHERE partition = :partition
   AND base >= coalesce(
           (SELECT max(base)
              FROM block
             WHERE partition = :partition
               AND base <= :low),
           :low)
   AND base < :high
 ORDER BY base
 LIMIT :limit;

-- block_metas
SELECT base, count, bytes, published_at_ms
  FROM block
 WHERE partition = :partition
   AND base >= :low
 ORDER BY base
 LIMIT :limit;

-- block_metas_newest_first
SELECT base, count, bytes, published_at_ms
  FROM block
 WHERE partition = :partition
   AND base >= :low
   AND base < :high
 ORDER BY base DESC
 LIMIT :limit;

-- block_before
-- The block that begins at or before an offset. Zero rows: none does.
SELECT base, count, bytes, published_at_ms
  FROM block
 WHERE partition = :partition
   AND base <= :offset
 ORDER BY base DESC
 LIMIT 1;

-- blocks_delete
DELETE FROM block
 WHERE partition = :partition
   AND base IN (SELECT base
                  FROM block
                 WHERE partition = :partition
                   AND base < :below
                 ORDER BY base
                 LIMIT :limit)
RETURNING chunk;

-- log_size
SELECT count(*), coalesce(sum(bytes), 0)::BIGINT
  FROM block
 WHERE partition = :partition
   AND base >= :low;

-- kept_insert
INSERT INTO kept (partition, "offset", data)
VALUES (:partition, :offset, :data)
ON CONFLICT (partition, "offset") DO UPDATE SET data = excluded.data;

-- kept
-- Zero rows: the message is neither in the log nor re-homed.
SELECT data
  FROM kept
 WHERE partition = :partition
   AND "offset" = :offset;

-- kept_offsets
SELECT "offset"
  FROM kept
 WHERE partition = :partition
 ORDER BY "offset";

-- kept_delete
DELETE FROM kept
 WHERE partition = :partition
   AND "offset" = :offset;

-- kept_erase
DELETE FROM kept
 WHERE partition = :partition;

-- receipt
-- Zero rows: this publish id was not seen within its window.
SELECT receipt
  FROM receipt
 WHERE topic = :topic
   AND publish_id = :publish_id
   AND expires_at_ms > :now;

-- receipt_insert
INSERT INTO receipt (topic, publish_id, expires_at_ms, receipt)
VALUES (:topic, :publish_id, :expires_at, :receipt)
ON CONFLICT (topic, publish_id) DO UPDATE
   SET expires_at_ms = excluded.expires_at_ms,
       receipt = excluded.receipt;

-- receipt_touch
-- A repetition is answered only when what it repeats is where it has to be: a transaction that writes nothing would not
-- wait for the standby.
UPDATE receipt
   SET expires_at_ms = expires_at_ms
 WHERE topic = :topic
   AND publish_id = :publish_id;

-- receipts_expire
DELETE FROM receipt
 WHERE (topic, publish_id) IN (SELECT topic, publish_id
                                 FROM receipt
                                WHERE expires_at_ms <= :now
                                ORDER BY expires_at_ms
                                LIMIT :limit);

-- receipt_oldest
-- Zero rows: no publish id is remembered.
SELECT expires_at_ms
  FROM receipt
 ORDER BY expires_at_ms
 LIMIT 1;

-- receipts_erase
DELETE FROM receipt
 WHERE topic = :topic;

-- block_delete
DELETE FROM block
 WHERE partition = :partition
   AND base = :base
RETURNING chunk;

-- block_head
-- The first :size bytes of a block. Zero rows: it is gone.
SELECT substr(data, 1, :size::INTEGER)
  FROM block
 WHERE partition = :partition
   AND base = :base;

-- gone_insert
INSERT INTO gone (partition, base, until_ms, publishes)
VALUES (:partition, :base, :until, :publishes)
ON CONFLICT (partition, base) DO UPDATE
   SET until_ms = excluded.until_ms,
       publishes = excluded.publishes;

-- gone
-- Zero rows: nothing was dropped of late whose publish may be repeated.
SELECT base, publishes
  FROM gone
 WHERE partition = :partition
 ORDER BY base;

-- gone_expire
DELETE FROM gone
 WHERE (partition, base) IN (SELECT partition, base
                               FROM gone
                              WHERE until_ms <= :now
                              ORDER BY until_ms
                              LIMIT :limit);

-- gone_next
SELECT min(until_ms)
  FROM gone;

-- gone_erase
DELETE FROM gone
 WHERE partition = :partition;
