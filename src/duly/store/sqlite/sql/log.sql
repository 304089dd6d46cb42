-- head
-- Zero rows: the partition does not exist.
SELECT first_offset, next_offset, published_at_ms, archived_to, archive_from, look_at_ms
  FROM duly_part
 WHERE id = :partition
   AND tenant = :tenant;

-- block_newest
-- Zero rows: the log is empty. (Joined with the one above it takes three times as long as both.)
SELECT base + count, published_at_ms
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
 ORDER BY base DESC
 LIMIT 1;

-- head_update
UPDATE duly_part
   SET first_offset = :first_offset,
       next_offset = :next_offset,
       published_at_ms = :published_at,
       archived_to = :archived_to,
       archive_from = :archive_from
 WHERE id = :partition
   AND tenant = :tenant;

-- block_insert
INSERT INTO duly_block (tenant, partition, base, count, bytes, published_at_ms, data, chunk)
VALUES (:tenant, :partition, :base, :count, :bytes, :published_at, :data, :chunk);

-- blocks
-- From the block that holds :low on. Zero rows: the log has nothing there.
SELECT base, iif(chunk IS NULL OR length(data) > 0, data, (SELECT c.data FROM duly_chunk AS c WHERE c.id = chunk))
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base >= coalesce(
           (SELECT max(base)
              FROM duly_block
             WHERE tenant = :tenant
               AND partition = :partition
               AND base <= :low),
           :low)
   AND base < :high
 ORDER BY base;

-- block_metas
SELECT base, count, bytes, published_at_ms
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base >= :low
 ORDER BY base;

-- block_metas_newest_first
SELECT base, count, bytes, published_at_ms
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base >= :low
 ORDER BY base DESC;

-- block_before
-- The block that begins at or before an offset. Zero rows: none does.
SELECT base, count, bytes, published_at_ms
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base <= :offset
 ORDER BY base DESC
 LIMIT 1;

-- blocks_delete
DELETE FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base IN (SELECT base
                  FROM duly_block
                 WHERE tenant = :tenant
                   AND partition = :partition
                   AND base < :below
                 ORDER BY base
                 LIMIT :limit)
RETURNING chunk;

-- log_size
SELECT count(*), coalesce(sum(bytes), 0)
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base >= :low;

-- block_places
-- Every block of the store, for the doctor.
SELECT tenant, partition, base
  FROM duly_block;

-- block_data
SELECT iif(chunk IS NULL OR length(data) > 0, data, (SELECT c.data FROM duly_chunk AS c WHERE c.id = chunk))
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base = :base;

-- kept_places
SELECT tenant, partition, "offset"
  FROM duly_kept;

-- kept_insert
INSERT OR REPLACE INTO duly_kept (tenant, partition, "offset", data)
VALUES (:tenant, :partition, :offset, :data);

-- kept
-- Zero rows: the message is neither in the log nor re-homed.
SELECT data
  FROM duly_kept
 WHERE tenant = :tenant
   AND partition = :partition
   AND "offset" = :offset;

-- kept_offsets
SELECT "offset"
  FROM duly_kept
 WHERE tenant = :tenant
   AND partition = :partition
 ORDER BY "offset";

-- kept_delete
DELETE FROM duly_kept
 WHERE tenant = :tenant
   AND partition = :partition
   AND "offset" = :offset;

-- kept_erase
DELETE FROM duly_kept
 WHERE tenant = :tenant
   AND partition = :partition;

-- receipt
-- Zero rows: this publish id was not seen within its window.
SELECT receipt
  FROM duly_receipt
 WHERE tenant = :tenant
   AND topic = :topic
   AND publish_id = :publish_id
   AND expires_at_ms > :now;

-- receipt_insert
INSERT OR REPLACE INTO duly_receipt (tenant, topic, publish_id, expires_at_ms, receipt)
VALUES (:tenant, :topic, :publish_id, :expires_at, :receipt);

-- receipts_expire
-- Rows were inserted in the order of their expiry: the oldest have the smallest ids.
DELETE FROM duly_receipt
 WHERE id IN (SELECT id
                FROM duly_receipt
               ORDER BY id
               LIMIT :limit)
   AND expires_at_ms <= :now;

-- receipt_oldest
-- Zero rows: no publish id is remembered.
SELECT expires_at_ms
  FROM duly_receipt
 ORDER BY id
 LIMIT 1;

-- receipts_erase
DELETE FROM duly_receipt
 WHERE tenant = :tenant
   AND topic = :topic;

-- block_delete
DELETE FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base = :base
RETURNING chunk;

-- block_head
-- The first :size bytes of a block. Zero rows: it is gone.
SELECT substr(iif(chunk IS NULL OR length(data) > 0, data, (SELECT c.data FROM duly_chunk AS c WHERE c.id = chunk)), 1, :size)
  FROM duly_block
 WHERE tenant = :tenant
   AND partition = :partition
   AND base = :base;

-- gone_insert
INSERT OR REPLACE INTO duly_gone (tenant, partition, base, until_ms, publishes)
VALUES (:tenant, :partition, :base, :until, :publishes);

-- gone
-- Zero rows: nothing was dropped of late whose publish may be repeated.
SELECT base, publishes
  FROM duly_gone
 WHERE tenant = :tenant
   AND partition = :partition
 ORDER BY base;

-- gone_expire
DELETE FROM duly_gone
 WHERE (tenant, partition, base) IN (SELECT tenant, partition, base
                                       FROM duly_gone
                                      WHERE until_ms <= :now
                                      ORDER BY until_ms
                                      LIMIT :limit);

-- gone_next
SELECT min(until_ms)
  FROM duly_gone;

-- gone_erase
DELETE FROM duly_gone
 WHERE tenant = :tenant
   AND partition = :partition;
