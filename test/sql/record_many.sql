--
-- Many keys in one call: idem_try_insert_many(...)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
\set age :source '/sql/include/age.sql'
\i :age

--
-- 1. One line
--
\x
SELECT ord, idempotency_key, outcome, run, changed, attempt IS NOT NULL AS attempt, resource_id IS NOT NULL AS resource, call_deadline, claim_context, retry_after,
	   expires_at IS NOT NULL AS expires, status, headers, body, body_kept
  FROM idem_try_insert_many('many', '{one}', ARRAY[sha256('one')], 'pay', context => '{"file": 7}');
SELECT ord, idempotency_key, outcome, run, changed, attempt, resource_id, call_deadline, claim_context, retry_after, expires_at IS NOT NULL AS expires, status, headers,
	   convert_from(body, 'UTF8') AS body, body_kept
  FROM idem_try_insert_many('many', '{one}', ARRAY[sha256('one')], 'pay', context => '{"file": 7}');
\x

--
-- 2. Every outcome in one call, a verdict per line, in the order of the lines
--
SET idem.record_retention = '5 d';
SELECT outcome FROM idem_try_insert_many('many', '{alive,over,lost,done,large,gone,expired,other,uncertain}', array_fill(sha256('one'), ARRAY[9]), 'pay', context => '{"file": 7}');
SELECT attempt, resource_id FROM idem.idempotency WHERE principal_id = 'many' AND idempotency_key = 'over' \gset
SELECT r.idempotency_key, c.changed FROM idem.idempotency AS r, LATERAL idem_complete(r.principal_id, r.idempotency_key, r.attempt, 402, '{"declined": true}') AS c
 WHERE r.principal_id = 'many' AND r.idempotency_key IN ('done', 'gone', 'expired') ORDER BY 1;
RESET idem.record_retention;
SET idem.max_response_bytes = 2;
SELECT c.changed FROM idem.idempotency AS r, LATERAL idem_complete(r.principal_id, r.idempotency_key, r.attempt, 201, '{"n": 1}') AS c WHERE r.principal_id = 'many' AND r.idempotency_key = 'large';
RESET idem.max_response_bytes;
SELECT idem_before_call('many', r.idempotency_key, r.attempt, '10 s') IS NOT NULL AS marked FROM idem.idempotency AS r WHERE r.principal_id = 'many' AND r.idempotency_key = 'lost';
SELECT u.changed FROM idem.idempotency AS r, LATERAL idem_mark_unknown('many', r.idempotency_key, r.attempt, status => 504) AS u WHERE r.principal_id = 'many' AND r.idempotency_key = 'uncertain';
SELECT pg_temp.age('many', 'over', '1 h'), pg_temp.age('many', 'lost', '1 h'), pg_temp.age('many', 'gone', '4 days'), pg_temp.age('many', 'expired', '6 days') \g /dev/null
\set lines 'ARRAY[\'new\', \'gone\', \'done\', \'alive\', \'over\', \'lost\', \'large\', \'expired\', \'other\', \'uncertain\', \'new\', \'new\', \'over\', \'lost\']'
\set hashes 'ARRAY[sha256(\'one\'), sha256(\'one\'), sha256(\'one\'), sha256(\'one\'), sha256(\'one\'), sha256(\'one\'), sha256(\'one\'), sha256(\'two\'), sha256(\'two\'), sha256(\'one\'), sha256(\'one\'), sha256(\'two\'), sha256(\'one\'), sha256(\'one\')]'
CREATE TEMP TABLE answer AS SELECT * FROM idem_try_insert_many('many', :lines, :hashes, 'pay', call_timeout => '10 s', context => '{"file": 8}');
SELECT ord, idempotency_key AS key, outcome, run, changed, attempt IS NOT NULL AS attempt, call_deadline IS NOT NULL AS call, claim_context, retry_after, expires_at IS NOT NULL AS expires, status, body_kept
  FROM answer ORDER BY ord;
SELECT ord, headers, convert_from(body, 'UTF8') AS body FROM answer WHERE NOT run ORDER BY ord \g (format=unaligned tuples_only=on)
SELECT attempt > :attempt AS later_attempt, resource_id = :'resource_id' AS same_resource FROM answer WHERE ord = 5;
-- the rows come out in the order of the lines, without ORDER BY
SELECT array_agg(ord) = array_agg(ord ORDER BY ord) AS in_order FROM answer;
-- each verdict is that of idem_try_insert, asked one by one now
SELECT count(*) FILTER (WHERE (c.outcome, c.changed, c.status, c.body, c.headers) IS DISTINCT FROM (a.outcome, a.changed, a.status, a.body, a.headers)) AS differ, count(*) AS lines
  FROM idem_try_insert_many('many', :lines, :hashes) AS a, LATERAL idem_try_insert('many', a.idempotency_key, (:hashes)[a.ord]) AS c WHERE a.retry_after IS NULL;

--
-- 3. The arguments hold for all lines
--
SELECT count(*) AS started FROM idem_try_insert_many('many 2', ARRAY(SELECT 'k' || n FROM generate_series(1, 3) AS n), array_fill(sha256('one'), ARRAY[3]), 'refund',
	lease => '100 s', call_timeout => '200 s', dedup_window => '1 h', context => '{"file": 9}', also_accept => ARRAY[sha256('zero')], retention => '10 days') WHERE outcome = 'STARTED';
SELECT operation, extract(epoch FROM lease_expires_at - claimed_at)::int AS lease, extract(epoch FROM call_deadline - claimed_at)::int AS call, extract(epoch FROM dedup_until - claimed_at)::int AS dedup, context, retention, count(*), count(DISTINCT attempt) AS attempts, count(DISTINCT resource_id) AS resources
  FROM idem.idempotency WHERE principal_id = 'many 2' GROUP BY 1, 2, 3, 4, 5, 6;
-- a definition of the hash that changed: another hash for the same line
SELECT outcome, count(*) FROM idem_try_insert_many('many 2', '{k1,k2,k3}', array_fill(sha256('new'), ARRAY[3])) GROUP BY 1;
SELECT outcome, count(*) FROM idem_try_insert_many('many 2', '{k1,k2,k3}', array_fill(sha256('new'), ARRAY[3]), also_accept => ARRAY[sha256('one')]) GROUP BY 1;

--
-- 4. A thousand keys, and the same again in the opposite order
--
SELECT outcome, count(*), count(DISTINCT attempt) AS attempts, min(ord), max(ord)
  FROM idem_try_insert_many('many 1000', ARRAY(SELECT 'line ' || n FROM generate_series(1, 1000) AS n), ARRAY(SELECT sha256(n::text::bytea) FROM generate_series(1, 1000) AS n)) GROUP BY 1;
SELECT count(*) FROM idem.idempotency WHERE principal_id = 'many 1000';
SELECT outcome, count(*) FROM idem_try_insert_many('many 1000', ARRAY(SELECT 'line ' || n FROM generate_series(1000, 1, -1) AS n), ARRAY(SELECT sha256(n::text::bytea) FROM generate_series(1000, 1, -1) AS n)) GROUP BY 1;
SELECT count(*) FILTER (WHERE c.changed) AS completed FROM idem.idempotency AS r, LATERAL idem_complete(r.principal_id, r.idempotency_key, r.attempt, 201, r.idempotency_key) AS c
 WHERE r.principal_id = 'many 1000' AND r.idempotency_key LIKE 'line %5';
SELECT outcome, count(*), count(*) FILTER (WHERE convert_from(body, 'UTF8') = idempotency_key) AS own_body
  FROM idem_try_insert_many('many 1000', ARRAY(SELECT 'line ' || n FROM generate_series(1, 1000) AS n), ARRAY(SELECT sha256(n::text::bytea) FROM generate_series(1, 1000) AS n)) GROUP BY 1 ORDER BY 1;
-- one key a thousand times
SELECT outcome, count(*), min(ord) FROM idem_try_insert_many('many 1000', array_fill('repeated'::text, ARRAY[1000]), array_fill(sha256('one'), ARRAY[1000])) GROUP BY 1 ORDER BY 3;
-- the order is that of the array, wherever its numbers begin
SELECT ord, idempotency_key, outcome FROM idem_try_insert_many('many', '[7:8]={from 7,from 8}'::text[], array_fill(sha256('one'), ARRAY[2], ARRAY[-3]));

--
-- 5. All or nothing, and nothing to write
--
BEGIN;
SELECT count(*) FROM idem_try_insert_many('many', '{rolled back 1,rolled back 2}', array_fill(sha256('one'), ARRAY[2])) WHERE run;
ROLLBACK;
SELECT count(*) FROM idem.idempotency WHERE principal_id = 'many' AND idempotency_key LIKE 'rolled back%';
BEGIN READ ONLY;
SELECT ord, outcome FROM idem_try_insert_many('many', '{done,other,done}', ARRAY[sha256('one'), sha256('two'), sha256('two')]);
SELECT txid_current_if_assigned();
SELECT pg_temp.refused('SELECT * FROM idem_try_insert_many(''many'', ''{done,read only}'', ARRAY[sha256(''one''), sha256(''one'')])') \g (format=unaligned tuples_only=on)
COMMIT;

--
-- 6. Bad input: refused with a hint, and no line is written
--
CREATE TEMP TABLE count_before AS SELECT count(*) FROM idem.idempotency;
\pset format unaligned
\pset tuples_only on
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT * FROM idem_try_insert_many(%s)', arguments))
  FROM (VALUES
	(1, 'no principal', 'NULL, ''{good,bad}'', ARRAY[sha256(''one''), sha256(''one'')]'),
	(2, 'no keys', '''many'', NULL, ARRAY[sha256(''one'')]'),
	(3, 'no hashes', '''many'', ''{good}'', NULL'),
	(4, 'empty lists', '''many'', ''{}'', ''{}'''),
	(5, 'one hash less', '''many'', ''{good,bad}'', ARRAY[sha256(''one'')]'),
	(6, 'one hash more', '''many'', ''{good}'', ARRAY[sha256(''one''), sha256(''one'')]'),
	(7, '1,001 keys', '''many'', ARRAY(SELECT ''bad '' || n FROM generate_series(1, 1001) AS n), array_fill(sha256(''one''), ARRAY[1001])'),
	(8, 'a key that is NULL', '''many'', ''{good,NULL}'', ARRAY[sha256(''one''), sha256(''one'')]'),
	(9, 'a hash that is NULL', '''many'', ''{good,bad}'', ARRAY[sha256(''one''), NULL]'),
	(10, 'an empty key', '''many'', ''{good,""}'', ARRAY[sha256(''one''), sha256(''one'')]'),
	(11, 'a key of 256 characters', '''many'', ARRAY[''good'', repeat(''k'', 256)], ARRAY[sha256(''one''), sha256(''one'')]'),
	(12, 'a key of 4,000 bytes that do not compress', '''many'', ARRAY[''good'', (SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n)], ARRAY[sha256(''one''), sha256(''one'')]'),
	(13, 'a line feed in a key', '''many'', ARRAY[''good'', E''bad\n''], ARRAY[sha256(''one''), sha256(''one'')]'),
	(14, 'not UTF-8', '''many'', ARRAY[''good'', E''\xff''], ARRAY[sha256(''one''), sha256(''one'')]'),
	(15, 'a hash of 15 bytes', '''many'', ''{good,bad}'', ARRAY[sha256(''one''), decode(repeat(''00'', 15), ''hex'')]'),
	(16, 'a hash of 65 bytes', '''many'', ''{good,bad}'', ARRAY[sha256(''one''), decode(repeat(''00'', 65), ''hex'')]'),
	(17, 'no lease', '''many'', ''{good}'', ARRAY[sha256(''one'')], lease => ''0'''),
	(18, 'endless call', '''many'', ''{good}'', ARRAY[sha256(''one'')], call_timeout => ''178000000 years'''),
	(19, 'negative window', '''many'', ''{good}'', ARRAY[sha256(''one'')], dedup_window => ''-1 s'''),
	(20, 'no retention', '''many'', ''{good}'', ARRAY[sha256(''one'')], retention => ''0'''),
	(21, 'a short hash in also_accept', '''many'', ''{good}'', ARRAY[sha256(''one'')], also_accept => ARRAY[''\x00''::bytea]'),
	(22, 'a matrix of keys', '''many'', ''{{good,bad},{good,bad}}'', array_fill(sha256(''one''), ARRAY[3])')) AS t(n, what, arguments)
 ORDER BY n;
\pset tuples_only off
\pset format aligned
SELECT count(*) - (SELECT count FROM count_before) AS written FROM idem.idempotency;

DELETE FROM idem.idempotency WHERE principal_id LIKE 'many%';
