--
-- Outbox: outbox_emit(...), plain rows, and what a mark costs
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused

-- the slot of the day on which a row was written; midnight may pass in between
CREATE FUNCTION pg_temp.day_slot(at timestamptz) RETURNS numeric LANGUAGE SQL AS $$
	SELECT floor(extract(epoch FROM at) / 86400) % 64
$$;

--
-- 1. An event, by the function and by plain INSERT and COPY
--
SELECT outbox_emit('payments.payment-authorized', 'payment-7', 'payment-authorized', '{"amount": 100, "currency": "EUR"}') AS id \gset
\x
SELECT event_id = :'id' AS id_given, substr(event_id::text, 15, 1) AS version, topic, partition_key, aggregate_type, aggregate_id, event_type, payload,
	   payload_bytes, headers, created_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS created_now,
	   slot IN (pg_temp.day_slot(created_at), idem.outbox_slot()) AS slot_of_today, tableoid::regclass::text = 'idem.outbox_' || lpad(slot::text, 2, '0') AS right_leaf,
	   published_at, kafka_partition, kafka_offset, attempts, parked_at, last_error
  FROM idem.outbox;
\x
-- every argument, by name
SELECT outbox_emit(topic => 'T-1_b.c', key => 'k', event_type => 't', payload => '{"b": 1.0, "a": [null]}', headers => '[["traceparent", "00-ab"], ["B", null], ["b", ""], ["B", "€"]]',
	once_key => 'once', aggregate_type => 'payment', aggregate_id => '7') IS NOT NULL AS emitted;
SELECT topic, partition_key, event_type, payload, payload_bytes, headers, aggregate_type, aggregate_id FROM idem.outbox WHERE topic = 'T-1_b.c';
-- bytes, a tombstone, JSON null, empty values, nothing but a topic
SELECT count(outbox_emit(topic => t.topic, key => t.key, event_type => t.type, payload => t.payload, payload_bytes => t.bytes))
  FROM (VALUES
	('bytes', 'k', 't', NULL, '\x0001ff'::bytea), ('tombstone', 'k', NULL, NULL, NULL), ('null', 'k', 't', 'null'::jsonb, NULL),
	('empty', '', '', '""', NULL), ('no-bytes', NULL, NULL, NULL, ''), ('bare', NULL, NULL, NULL, NULL)) AS t(topic, key, type, payload, bytes);
\pset null '(null)'
SELECT topic, partition_key, event_type, payload, payload_bytes, headers FROM idem.outbox WHERE topic IN ('bytes', 'tombstone', 'null', 'empty', 'no-bytes', 'bare') ORDER BY topic;
\pset null ''

-- plain INSERT: only the topic is needed; COPY
INSERT INTO idem.outbox (topic) VALUES ('plain');
INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 'plain', 'k' || n, to_jsonb(n) FROM generate_series(1, 5) AS n;
COPY idem.outbox (topic, partition_key, payload, headers) FROM stdin;
copied	k1	{"n": 1}	[["a", "b"]]
copied	k2	\N	\N
\.
INSERT INTO idem.outbox (event_id, topic, created_at) VALUES ('919108f7-52d1-4320-9bac-f847db4148a8', 'own-id', '2020-01-01');
SELECT topic, count(*), count(DISTINCT event_id) AS ids, bool_and(substr(event_id::text, 15, 1) = '7') AS version_7,
	   bool_and(slot IN (idem.outbox_slot(), (idem.outbox_slot() + 63) % 64)) AS slot_of_today, bool_and(attempts = 0 AND published_at IS NULL) AS to_publish
  FROM idem.outbox WHERE topic IN ('plain', 'copied', 'own-id') GROUP BY topic ORDER BY topic;
-- seq and event id grow together, over all ways
SELECT bool_and(seq > before) AS grow
  FROM (SELECT seq, lag(seq) OVER (ORDER BY event_id) AS before FROM idem.outbox WHERE topic <> 'own-id') AS pair WHERE before IS NOT NULL;
-- no event of a transaction that was rolled back
BEGIN;
SELECT outbox_emit('undone', 'k', 't', '{}') IS NOT NULL AS emitted;
SAVEPOINT s;
SELECT outbox_emit('undone', 'k', 't', '{}') IS NOT NULL AS emitted;
ROLLBACK;
SELECT count(*) FROM idem.outbox WHERE topic = 'undone';

--
-- 2. What is refused
--
CREATE TEMP TABLE before AS SELECT (SELECT count(*) FROM idem.outbox) AS outbox, (SELECT count(*) FROM idem.outbox_once) AS once;
\pset format unaligned
\pset tuples_only on
-- by the function: 22004, 22023, 22P02
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT outbox_emit(%s)', arguments))
  FROM (VALUES
	(1, 'no topic', 'NULL, ''k'', ''t'', ''{}'''),
	(2, 'empty topic', ''''', ''k'', ''t'', ''{}'''),
	(3, 'topic of 250 characters', 'repeat(''t'', 250), ''k'', ''t'', ''{}'''),
	(4, 'topic .', '''.'', ''k'', ''t'', ''{}'''),
	(5, 'topic ..', '''..'', ''k'', ''t'', ''{}'''),
	(6, 'space in the topic', '''a b'', ''k'', ''t'', ''{}'''),
	(7, 'slash in the topic', '''a/b'', ''k'', ''t'', ''{}'''),
	(8, 'letter outside of ASCII in the topic', '''té'', ''k'', ''t'', ''{}'''),
	(9, 'line feed at the end of the topic', 'E''bad\n'', ''k'', ''t'', ''{}'''),
	(10, 'two payloads', '''bad'', ''k'', ''t'', ''{}'', payload_bytes => ''\x00'''),
	(11, 'payload that is no JSON', '''bad'', ''k'', ''t'', ''{amount: 100}'''),
	(12, 'payload with a zero character', '''bad'', ''k'', ''t'', ''"\u0000"'''),
	(13, 'headers as an object', '''bad'', ''k'', ''t'', ''{}'', headers => ''{"a": "b"}'''),
	(14, 'headers as null', '''bad'', ''k'', ''t'', ''{}'', headers => ''null'''),
	(15, 'headers that are no JSON', '''bad'', ''k'', ''t'', ''{}'', headers => ''a: b'''),
	(16, 'one header, flat', '''bad'', ''k'', ''t'', ''{}'', headers => ''["a", "b"]'''),
	(17, 'header without value', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["a"]]'''),
	(18, 'header of three', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["a", "b", "c"]]'''),
	(19, 'header without name', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["", "b"]]'''),
	(20, 'name that is null', '''bad'', ''k'', ''t'', ''{}'', headers => ''[[null, "b"]]'''),
	(21, 'value that is a number', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["a", 1]]'''),
	(22, 'value that is true', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["a", true]]'''),
	(23, 'value that is a list', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["a", []]]'''),
	(24, 'second header bad', '''bad'', ''k'', ''t'', ''{}'', headers => ''[["a", "b"], 7]'''),
	(25, 'empty once_key', '''bad'', ''k'', ''t'', ''{}'', once_key => '''''),
	(26, 'once_key of 256 characters', '''bad'', ''k'', ''t'', ''{}'', once_key => repeat(''o'', 256)'),
	(27, 'once_key of 4,000 bytes that do not compress', '''bad'', ''k'', ''t'', ''{}'', once_key => (SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n)'),
	(28, 'line feed in the once_key', '''bad'', ''k'', ''t'', ''{}'', once_key => E''a\n'''),
	(29, 'ordered without a key', '''bad'', NULL, ''t'', ''{}'', ordered => true'),
	(30, 'ordered NULL', '''bad'', ''k'', ''t'', ''{}'', ordered => NULL')) AS t(n, what, arguments)
 ORDER BY n;
SELECT left(pg_temp.refused('SELECT set_config(''transaction_read_only'', ''on'', true), outbox_emit(''bad'', ''k'', ''t'', ''{}'')'), 5);
-- by the table (the leaf differs from day to day)
SELECT what || E'\n  ' || regexp_replace(split_part(pg_temp.refused(format('INSERT INTO idem.outbox %s', row)), E'\n', 1), 'outbox_\d\d', 'outbox_NN')
  FROM (VALUES
	(1, 'no topic', 'DEFAULT VALUES'),
	(2, 'empty topic', '(topic) VALUES ('''')'),
	(3, 'topic of 250 characters', '(topic) VALUES (repeat(''t'', 250))'),
	(4, 'topic ..', '(topic) VALUES (''..'')'),
	(5, 'space in the topic', '(topic) VALUES (''a b'')'),
	(6, 'two payloads', '(topic, payload, payload_bytes) VALUES (''bad'', ''{}'', '''')'),
	(7, 'headers as an object', '(topic, headers) VALUES (''bad'', ''{"a": "b"}'')'),
	(8, 'header without name', '(topic, headers) VALUES (''bad'', ''[["", "b"]]'')'),
	(9, 'value that is a number', '(topic, headers) VALUES (''bad'', ''[["a", 1]]'')'),
	(10, 'no event id', '(topic, event_id) VALUES (''bad'', NULL)'),
	(11, 'no seq', '(topic, seq) VALUES (''bad'', NULL)'),
	(12, 'no such slot', '(topic, slot) VALUES (''bad'', 64)'),
	(13, 'negative slot', '(topic, slot) VALUES (''bad'', -1)'),
	(14, 'seq that is there', '(topic, seq, slot) SELECT ''bad'', seq, slot FROM idem.outbox WHERE topic = ''bare''')) AS t(n, what, row)
 ORDER BY n;
\pset tuples_only off
\pset format aligned
\set VERBOSITY sqlstate
COPY idem.outbox (topic, headers) FROM stdin;
bad	[["a", 1]]
\.
COPY idem.outbox (topic) FROM stdin;
good
not good
\.
COPY idem.outbox (topic, payload) FROM stdin;
bad	{amount: 100}
\.
\set VERBOSITY default
SELECT outbox.count - before.outbox AS outbox, once.count - before.once AS once
  FROM before, (SELECT count(*) FROM idem.outbox) AS outbox, (SELECT count(*) FROM idem.outbox_once) AS once;
-- the limits themselves are fine
SELECT count(outbox_emit(topic, repeat('k', 10000), NULL, NULL)) FROM (VALUES (repeat('t', 249)), ('...'), ('a'), ('-'), ('AZaz09._-')) AS t(topic);
SELECT topic, idem.kafka_topic_valid(topic) FROM (VALUES ('a'), ('.'), ('..'), ('...'), ('.a'), (''), ('a b'), ('a:b'), ('A_z.0-9'), (U&'\00df')) AS t(topic);
SELECT length(topic), idem.kafka_topic_valid(topic) FROM (VALUES (repeat('t', 249)), (repeat('t', 250)), (NULL)) AS t(topic);
SELECT headers, left(pg_temp.refused(format('INSERT INTO idem.outbox (topic, headers) VALUES (''bad'', %L)', headers)), 5) AS refused
  FROM (VALUES ('[]'::jsonb), ('[["a", "b"]]'), ('[["a", null]]'), ('[["a", ""]]'), ('[["a", "b"], ["a", "b"]]'),
	('{}'), ('[[]]'), ('[["a"]]'), ('[["a", 1]]'), ('[["", "b"]]'), ('"a"'), ('1'), ('null'), (NULL)) AS t(headers);
DELETE FROM idem.outbox WHERE topic = 'bad';

--
-- 3. once_key: a fact is stated once
--
SELECT outbox_emit('once', 'k', 't', '{"n": 1}', '[["h", "v"]]', 'fact 1', 'payment', '7') AS first \gset
SELECT outbox_emit('once', 'k', 't', '{"n": 1}', '[["h", "v"]]', 'fact 1', 'payment', '7') = :'first' AS same_id;
-- ordered or not is no content
SELECT outbox_emit('once', 'k', 't', '{"n": 1}', '[["h", "v"]]', 'fact 1', 'payment', '7', ordered => true) = :'first' AS same_id;
SELECT count(*) AS events FROM idem.outbox WHERE topic = 'once';
SELECT event_id = :'first' AS same_id, length(digest) AS digest, extract(epoch FROM expires_at - clock_timestamp()) BETWEEN 90 * 86400 - 60 AND 90 * 86400 AS ninety_days
  FROM idem.outbox_once WHERE once_key = 'fact 1';
-- other content: each part of it
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT outbox_emit(once_key => ''fact 1'', %s)', arguments))
  FROM (VALUES
	(1, 'topic', 'topic => ''once-2'', key => ''k'', event_type => ''t'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(2, 'key', 'topic => ''once'', key => ''k2'', event_type => ''t'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(3, 'no key', 'topic => ''once'', key => NULL, event_type => ''t'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(4, 'type', 'topic => ''once'', key => ''k'', event_type => ''t2'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(5, 'payload', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => ''{"n": 2}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(6, 'no payload', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => NULL, headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(7, 'payload as bytes', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => NULL, payload_bytes => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(8, 'headers', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => ''{"n": 1}'', headers => ''[["h", "w"]]'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(9, 'no headers', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => ''{"n": 1}'', aggregate_type => ''payment'', aggregate_id => ''7'''),
	(10, 'aggregate type', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''seat'', aggregate_id => ''7'''),
	(11, 'aggregate id', 'topic => ''once'', key => ''k'', event_type => ''t'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''8'''),
	(12, 'a character moved from key to type', 'topic => ''once'', key => '''', event_type => ''kt'', payload => ''{"n": 1}'', headers => ''[["h", "v"]]'', aggregate_type => ''payment'', aggregate_id => ''7''')) AS t(n, what, arguments)
 ORDER BY n \g (format=unaligned tuples_only=on)
SELECT count(*) AS events FROM idem.outbox WHERE topic LIKE 'once%';
-- other keys are other facts; without one nothing is checked
SELECT outbox_emit('once', 'k', 't', '{"n": 1}', '[["h", "v"]]', 'Fact 1', 'payment', '7') <> :'first' AS other_id;
SELECT outbox_emit('once', 'k', 't', '{"n": 1}', '[["h", "v"]]', NULL, 'payment', '7') <> :'first' AS other_id;
-- a rollback forgets
BEGIN;
SELECT outbox_emit('once', 'k', 't', '{"n": 2}', once_key => 'fact 2') AS undone \gset
SELECT outbox_emit('once', 'k', 't', '{"n": 2}', once_key => 'fact 2') = :'undone' AS same_id;
ROLLBACK;
SELECT outbox_emit('once', 'k', 't', '{"n": 3}', once_key => 'fact 2') <> :'undone' AS other_id;
-- 90 days later it may be stated anew, and is guarded anew
UPDATE idem.outbox_once SET expires_at = clock_timestamp() - interval '1 s' WHERE once_key = 'fact 1';
SELECT outbox_emit('once', 'k', 't', '{"n": 4}', once_key => 'fact 1') AS second \gset
SELECT :'second' <> :'first' AS other_id;
SELECT outbox_emit('once', 'k', 't', '{"n": 4}', once_key => 'fact 1') = :'second' AS same_id;
SELECT left(pg_temp.refused('SELECT outbox_emit(''once'', ''k'', ''t'', ''{"n": 1}'', ''[["h", "v"]]'', ''fact 1'', ''payment'', ''7'')'), 5) AS sqlstate;
SELECT event_id = :'second' AS second_id, expires_at > clock_timestamp() + interval '89 days' AS ninety_days FROM idem.outbox_once WHERE once_key = 'fact 1';
SELECT payload, count(*) FROM idem.outbox WHERE topic = 'once' GROUP BY payload ORDER BY payload;
-- longest
SELECT outbox_emit('once', 'k', 't', '{}', once_key => repeat(U&'\+01F602', 255)) IS NOT NULL AS emitted;

--
-- 4. The slot comes from the clock in UTC
--
SET TimeZone = 'Pacific/Kiritimati';
SELECT idem.outbox_slot() IN (pg_temp.day_slot(clock_timestamp()), (pg_temp.day_slot(clock_timestamp()) + 63) % 64) AS slot_of_today;
RESET TimeZone;
SELECT pg_typeof(idem.outbox_slot());
-- the note for the relay lets every row pass
SELECT idem.outbox_valid(1, 0::smallint, NULL, NULL, 't', NULL, NULL, NULL), idem.outbox_valid(1, 99::smallint, now(), NULL, 't', NULL, NULL, NULL), idem.outbox_valid(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

--
-- 5. A mark is a HOT update
--

-- no index of a leaf names a column that a mark sets, as key or in a predicate
SELECT a.attname, count(DISTINCT i.indrelid) AS leaves
  FROM pg_index AS i
  JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid
  JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
 WHERE i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idem.outbox'::regclass)
 GROUP BY a.attname ORDER BY a.attname;

-- a thousand rows of each size, marked as the relay does it; the counters are
-- those of this transaction and what went before it, so the difference counts
BEGIN;
INSERT INTO idem.outbox (topic, partition_key, event_type, payload, slot)
	SELECT 'marked', 'k' || n % 100, 'payment-authorized', jsonb_build_object('text', rpad(md5(n::text), size, md5((n + 1)::text))), slot
	  FROM (VALUES (1, 50), (2, 100), (3, 200), (4, 400), (5, 800)) AS t(slot, size), generate_series(1, 1000) AS n;
CREATE TEMP TABLE counted AS SELECT relid, n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE schemaname = 'idem';
UPDATE idem.outbox SET published_at = clock_timestamp(), kafka_partition = 3, kafka_offset = 1000000 + seq WHERE topic = 'marked' AND seq % 2 = 0;
UPDATE idem.outbox SET published_at = clock_timestamp(), kafka_partition = 3, kafka_offset = 1000000 + seq WHERE topic = 'marked' AND published_at IS NULL;
SELECT length(payload->>'text') AS payload, s.n_tup_upd - c.n_tup_upd AS marked, s.n_tup_hot_upd - c.n_tup_hot_upd AS hot
  FROM idem.outbox AS o JOIN pg_stat_xact_user_tables AS s ON s.relid = o.tableoid JOIN counted AS c ON c.relid = o.tableoid
 WHERE topic = 'marked' GROUP BY 1, 2, 3 ORDER BY 1;
COMMIT;
SELECT count(*) FROM idem.outbox WHERE topic = 'marked' AND published_at IS NOT NULL;

-- triggers: on each leaf, and whatever session_replication_role is
SELECT tgname, tgenabled, count(*) FROM pg_trigger
 WHERE tgrelid::regclass::text LIKE 'idem.outbox%' GROUP BY 1, 2 ORDER BY 1;

DELETE FROM idem.outbox;
DELETE FROM idem.outbox_once;
