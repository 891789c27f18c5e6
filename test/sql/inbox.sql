--
-- Inbox: inbox_apply(consumer, event_id)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused

--
-- 1. True the first time, false for a repeat; each consumer for itself
--
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000001');
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000001');
SELECT inbox_apply('receipts', '018f0000-0000-7000-8000-000000000001');
SELECT inbox_apply('Enrollment', '018f0000-0000-7000-8000-000000000001');
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000002');
SELECT inbox_apply('receipts', '018f0000-0000-7000-8000-000000000001');
-- a repeat inside one transaction, and inside one statement
BEGIN;
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000003');
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000003');
COMMIT;
SELECT n, inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000004') FROM generate_series(1, 3) AS n;
SELECT consumer, event_id, slot, applied_at BETWEEN now() - interval '5 min' AND clock_timestamp() AS now
  FROM idem.inbox ORDER BY event_id, consumer;

-- a rollback forgets, of the whole transaction or to a savepoint; no exception
-- and no savepoint is needed for a repeat
BEGIN;
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000005');
ROLLBACK;
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000005');
BEGIN;
SAVEPOINT s;
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000006');
ROLLBACK TO SAVEPOINT s;
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000006');
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000001');
COMMIT;
SELECT inbox_apply('enrollment', '018f0000-0000-7000-8000-000000000006');

-- in all isolation levels
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT inbox_apply('levels', '018f0000-0000-7000-8000-000000000001');
SELECT inbox_apply('levels', '018f0000-0000-7000-8000-000000000001');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT inbox_apply('levels', '018f0000-0000-7000-8000-000000000001');
SELECT inbox_apply('levels', '018f0000-0000-7000-8000-000000000002');
COMMIT;

--
-- 2. The leaf: the UTC day inside a version 7 UUID modulo 64, else 64
--
CREATE TEMP TABLE id (n int, what text, id uuid, timed boolean);
INSERT INTO id VALUES
	(1, 'day 0', '00000000-0000-7000-8000-000000000000', true),
	(2, 'day 0, last millisecond', '00000526-5bff-7fff-bfff-ffffffffffff', true),
	(3, 'day 1, first millisecond', '00000526-5c00-7000-8000-000000000000', true),
	(4, 'day 63, last millisecond', '00014996-ffff-7000-8000-000000000000', true),
	(5, 'day 64, first millisecond', '00014997-0000-7000-8000-000000000000', true),
	(6, 'RFC 9562, appendix A.6', '017f22e2-79b0-7cc3-98c4-dc0c0c07398f', true),
	(7, 'the last day of all', 'ffffffff-ffff-7fff-bfff-ffffffffffff', true),
	(8, 'variant 9', '017f22e2-79b0-7cc3-90c4-dc0c0c07398f', true),
	(9, 'variant a', '017f22e2-79b0-7cc3-a0c4-dc0c0c07398f', true),
	(10, 'variant b', '017f22e2-79b0-7cc3-b0c4-dc0c0c07398f', true),
	(11, 'variant 0', '017f22e2-79b0-7cc3-00c4-dc0c0c07398f', false),
	(12, 'variant 7', '017f22e2-79b0-7cc3-70c4-dc0c0c07398f', false),
	(13, 'variant c', '017f22e2-79b0-7cc3-c0c4-dc0c0c07398f', false),
	(14, 'variant f', '017f22e2-79b0-7cc3-f0c4-dc0c0c07398f', false),
	(15, 'version 1', 'c232ab00-9414-11ec-b3c8-9f6bdeced846', false),
	(16, 'version 3', '5df41881-3aed-3515-88a7-2f4a814cf09e', false),
	(17, 'version 4', '919108f7-52d1-4320-9bac-f847db4148a8', false),
	(18, 'version 5', '2ed6657d-e927-568b-95e1-2665a8aea6a2', false),
	(19, 'version 6', '1ec9414c-232a-6b00-b3c8-9f6bdeced846', false),
	(20, 'version 8', '2489e9ad-2ee2-8e00-8ec9-32d5f69181c0', false),
	(21, 'nil', '00000000-0000-0000-0000-000000000000', false),
	(22, 'max', 'ffffffff-ffff-ffff-ffff-ffffffffffff', false);
-- the same by another way
CREATE FUNCTION pg_temp.day_slot(id uuid) RETURNS bigint LANGUAGE SQL AS $$
	SELECT ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 86400000 % 64
$$;
SELECT what, idem.inbox_slot(id) AS slot, CASE WHEN timed THEN pg_temp.day_slot(id) ELSE 64 END = idem.inbox_slot(id) AS right_slot FROM id ORDER BY n;
-- all days of two turns of the ring, at their first and last millisecond
SELECT count(*) AS days, count(DISTINCT idem.inbox_slot(first)) AS slots,
	   count(*) FILTER (WHERE idem.inbox_slot(first) <> day % 64 OR idem.inbox_slot(last) <> day % 64) AS wrong
  FROM generate_series(20000, 20127) AS day,
	   LATERAL (SELECT format('%s-%s-7abc-8000-000000000000', left(h, 8), right(h, 4))::uuid AS first FROM lpad(to_hex(day * 86400000::bigint), 12, '0') AS h) AS f,
	   LATERAL (SELECT format('%s-%s-7abc-8000-000000000000', left(h, 8), right(h, 4))::uuid AS last FROM lpad(to_hex(day * 86400000::bigint + 86399999), 12, '0') AS h) AS l;
-- whatever the session's time zone
SET TimeZone = 'Pacific/Kiritimati';
SELECT idem.inbox_slot('017f22e2-79b0-7cc3-98c4-dc0c0c07398f');
RESET TimeZone;
SELECT idem.inbox_slot(NULL) IS NULL AS null_slot;
-- ids made here and now go to the leaf of today
SELECT idem.inbox_slot(idem_uuid7()) - floor(extract(epoch FROM clock_timestamp()) / 86400) % 64 IN (0, -1, 63) AS today;

-- a row is where its slot says, and nowhere else
SELECT count(*) FILTER (WHERE inbox_apply('leaves', id)) AS applied FROM id;
SELECT count(*) FILTER (WHERE inbox_apply('leaves', id)) AS applied FROM id;
SELECT tableoid::regclass AS leaf, count(*), bool_and(tableoid::regclass::text = 'idem.inbox_' || lpad(slot::text, 2, '0')) AS right_leaf,
	   bool_and(slot = idem.inbox_slot(event_id)) AS right_slot
  FROM idem.inbox WHERE consumer = 'leaves' GROUP BY 1 ORDER BY 1;
\pset format unaligned
\pset tuples_only on
SELECT what || E'\n  ' || split_part(pg_temp.refused(statement), E'\n', 1)
  FROM (VALUES
	(1, 'wrong slot', 'INSERT INTO idem.inbox VALUES (''x'', ''017f22e2-79b0-7cc3-98c4-dc0c0c07398f'', 3, ''epoch'')'),
	(2, 'slot of a timeless id for one with a time', 'INSERT INTO idem.inbox VALUES (''x'', ''017f22e2-79b0-7cc3-98c4-dc0c0c07398f'', 64, ''epoch'')'),
	(3, 'slot of a day for a timeless id', 'INSERT INTO idem.inbox VALUES (''x'', ''919108f7-52d1-4320-9bac-f847db4148a8'', 3, ''epoch'')'),
	(4, 'no such slot', 'INSERT INTO idem.inbox VALUES (''x'', ''919108f7-52d1-4320-9bac-f847db4148a8'', 65, ''epoch'')'),
	(5, 'no slot', 'INSERT INTO idem.inbox VALUES (''x'', ''919108f7-52d1-4320-9bac-f847db4148a8'', NULL, ''epoch'')'),
	(6, 'another leaf by name', 'INSERT INTO idem.inbox_03 VALUES (''x'', ''017f22e2-79b0-7cc3-98c4-dc0c0c07398f'', idem.inbox_slot(''017f22e2-79b0-7cc3-98c4-dc0c0c07398f''), ''epoch'')'),
	(7, 'moved to another slot', 'UPDATE idem.inbox SET slot = 3 WHERE consumer = ''leaves'' AND event_id = ''017f22e2-79b0-7cc3-98c4-dc0c0c07398f''')) AS t(n, what, statement)
 ORDER BY n;

--
-- 3. Bad input: refused, and nothing is written
--
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT inbox_apply(%s)', arguments))
  FROM (VALUES
	(1, 'no consumer', 'NULL, ''018f0000-0000-7000-8000-000000000001'''),
	(2, 'no event', '''bad'', NULL'),
	(3, 'empty consumer', ''''', ''018f0000-0000-7000-8000-000000000001'''),
	(4, 'consumer of 256 characters', 'repeat(''c'', 256), ''018f0000-0000-7000-8000-000000000001'''),
	(5, 'consumer of 4,000 bytes that do not compress', '(SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n), ''018f0000-0000-7000-8000-000000000001'''),
	(6, 'line feed in the consumer', 'E''a\n'', ''018f0000-0000-7000-8000-000000000001'''),
	(7, 'delete in the consumer', 'E''\x7f'', ''018f0000-0000-7000-8000-000000000001'''),
	(8, 'event id that is no UUID', '''bad'', ''order-8812:placed''')) AS t(n, what, arguments)
 ORDER BY n;
SELECT left(pg_temp.refused('SELECT set_config(''transaction_read_only'', ''on'', true), inbox_apply(''bad'', ''018f0000-0000-7000-8000-000000000001'')'), 5);
\pset tuples_only off
\pset format aligned
SELECT count(*) FROM idem.inbox WHERE consumer NOT IN ('enrollment', 'Enrollment', 'receipts', 'levels', 'leaves');
SELECT inbox_apply(repeat('c', 255), '018f0000-0000-7000-8000-000000000001') AS longest, inbox_apply(repeat(U&'\+01F602', 255), '018f0000-0000-7000-8000-000000000001') AS longest_in_bytes;

DELETE FROM idem.inbox;
