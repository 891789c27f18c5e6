--
-- For sweepers and operators: idem_claim_stale(operation, max_rows, lease),
-- idem_lookup(principal_id, idempotency_key)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
\set age :source '/sql/include/age.sql'
\i :age

\set stale 'principal_id, idempotency_key AS key, outcome, run, changed, attempt IS NOT NULL AS attempt, resource_id IS NOT NULL AS resource, call_deadline, context, retry_after, expires_at IS NOT NULL AS expires, status, body_kept'

--
-- 1. Which records are stale
--
SELECT key, (idem_try_insert('stale', key, sha256('one'), 'pay', call_timeout => call, dedup_window => dedup, context => jsonb_build_object('key', key))).outcome
  FROM (VALUES ('alive', NULL::interval, '0'::interval), ('over', NULL, '0'), ('called', '10 s', '0'), ('called, dedup', '10 s', '10 h'), ('called, forgotten', '10 s', '1 h'), ('unknown', NULL, '0'), ('completed', NULL, '0'), ('expired', NULL, '0'), ('yielded', NULL, '0')) AS t(key, call, dedup);
SELECT outcome FROM idem_try_insert('stale 2', 'over', sha256('one'), 'pay');
SELECT outcome FROM idem_try_insert('stale', 'refund', sha256('one'), 'refund');
SELECT outcome FROM idem_try_insert('stale', 'no operation', sha256('one'));
SELECT idempotency_key AS key, CASE idempotency_key WHEN 'unknown' THEN (idem_mark_unknown('stale', idempotency_key, attempt)).changed WHEN 'yielded' THEN (idem_yield('stale', idempotency_key, attempt)).changed
	   ELSE (idem_complete('stale', idempotency_key, attempt, 201, '{}')).changed END AS done
  FROM idem.idempotency WHERE principal_id = 'stale' AND idempotency_key IN ('unknown', 'completed', 'yielded') ORDER BY 1;
SELECT pg_temp.age('stale', 'over', '2 h'), pg_temp.age('stale', 'called', '6 h'), pg_temp.age('stale', 'called, dedup', '5 h'), pg_temp.age('stale', 'called, forgotten', '4 h'), pg_temp.age('stale', 'unknown', '1 h'),
	   pg_temp.age('stale', 'completed', '1 h'), pg_temp.age('stale', 'expired', '1 year'), pg_temp.age('stale 2', 'over', '3 h'), pg_temp.age('stale', 'refund', '7 h'), pg_temp.age('stale', 'no operation', '8 h') \g /dev/null
CREATE TEMP TABLE before AS SELECT * FROM idem.idempotency WHERE principal_id ~ '^stale';

-- the longest over first, one at a time unless told otherwise
BEGIN;
SELECT :stale FROM idem_claim_stale('pay');
SELECT principal_id, idempotency_key AS key, outcome, changed FROM idem_claim_stale('pay', 3);
-- what this transaction claimed is not stale to it
SELECT principal_id, idempotency_key AS key, outcome, changed FROM idem_claim_stale('pay', 1000);
SELECT principal_id, idempotency_key AS key, outcome, changed FROM idem_claim_stale('pay', 1000);
ROLLBACK;

-- all at once; a lease of one's own
\x
SELECT :stale, headers, convert_from(body, 'UTF8') AS body FROM idem_claim_stale('pay', 1000, '90 s');
\x
SELECT r.idempotency_key AS key, r.state, r.attempt > b.attempt AS later_attempt, r.resource_id = b.resource_id AS same_resource, r.request_hash = b.request_hash AS same_hash, r.created_at = b.created_at AS same_creation, r.operation,
	   r.tries, extract(epoch FROM r.lease_expires_at - r.claimed_at)::int AS lease, r.yielded, r.call_started_at = b.call_started_at AS call, r.dedup_until = b.dedup_until AS dedup
  FROM idem.idempotency AS r JOIN before AS b USING (principal_id, idempotency_key) WHERE r::text <> b::text AND r.state = 'IN_PROGRESS' ORDER BY principal_id, 1;
SELECT r.idempotency_key AS key, r.state, r.attempt = b.attempt AS same_attempt, r.tries, r.unknown_reason, r.expires_at
  FROM idem.idempotency AS r JOIN before AS b USING (principal_id, idempotency_key) WHERE r::text <> b::text AND r.state = 'UNKNOWN' ORDER BY principal_id, 1;
SELECT count(*) AS untouched FROM idem.idempotency AS r JOIN before AS b USING (principal_id, idempotency_key) WHERE r::text = b::text;
-- nothing is left of it
SELECT count(*) FROM idem_claim_stale('pay', 1000);
SELECT count(*) FROM idem_claim_stale('no such operation', 1000);

-- who claimed so may finish the work, and the attempt before may not
SELECT attempt FROM idem.idempotency WHERE principal_id = 'stale' AND idempotency_key = 'over' \gset
SELECT idem_before_call('stale', 'over', :attempt, '10 s') IS NOT NULL AS marked;
SELECT changed FROM idem_complete('stale', 'over', :attempt, 201, '{"swept": true}');
SELECT left(pg_temp.refused(format('SELECT idem_complete(''stale'', ''over'', %s, 201, ''{}'')', attempt)), 5) FROM before WHERE principal_id = 'stale' AND idempotency_key = 'over';
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_try_insert('stale', 'over', sha256('one'));
-- the default lease, and the tries that it counts
SET idem.max_tries = 2;
SELECT idempotency_key AS key, outcome, changed FROM idem_claim_stale('refund');
SELECT extract(epoch FROM lease_expires_at - claimed_at)::int AS lease, tries FROM idem.idempotency WHERE principal_id = 'stale' AND idempotency_key = 'refund';
SELECT pg_temp.age('stale', 'refund', '1 h') \g /dev/null
SELECT idempotency_key AS key, outcome, run, changed, status FROM idem_claim_stale('refund');
SELECT state, tries, unknown_reason FROM idem.idempotency WHERE principal_id = 'stale' AND idempotency_key = 'refund';
RESET idem.max_tries;
-- a record whose first claim is not committed is not there to be claimed
BEGIN;
SELECT outcome FROM idem_try_insert('stale', 'mine', sha256('one'), 'mine', lease => '1 us');
SELECT count(*) FROM idem_claim_stale('mine');
SELECT outcome FROM idem_try_insert('stale', 'mine', sha256('one'), 'mine');
COMMIT;
SELECT idempotency_key AS key, outcome FROM idem_claim_stale('mine');

--
-- 2. idem_lookup: what a record answers, for any request, without a claim
--
DELETE FROM idem.idempotency WHERE principal_id ~ '^stale';
SET idem.record_retention = '5 d';
SELECT key, (idem_try_insert('stale', key, sha256('one'), 'pay', call_timeout => call, context => '{"secret": false}')).outcome
  FROM (VALUES ('alive', NULL::interval), ('over', NULL), ('called', '10 s'), ('unknown', NULL), ('completed', NULL), ('gone', NULL), ('large', NULL), ('expired', NULL)) AS t(key, call);
SET idem.max_response_bytes = 20;
SELECT idempotency_key AS key, CASE idempotency_key WHEN 'unknown' THEN (idem_mark_unknown('stale', idempotency_key, attempt, status => 504)).changed
	   ELSE (idem_complete('stale', idempotency_key, attempt, 402, rpad('{"declined": true}', CASE idempotency_key WHEN 'large' THEN 21 ELSE 18 END))).changed END AS done
  FROM idem.idempotency WHERE principal_id = 'stale' AND idempotency_key IN ('unknown', 'completed', 'gone', 'large', 'expired') ORDER BY 1;
RESET idem.max_response_bytes;
RESET idem.record_retention;
SELECT pg_temp.age('stale', 'over', '1 h'), pg_temp.age('stale', 'called', '1 h'), pg_temp.age('stale', 'gone', '4 days'), pg_temp.age('stale', 'expired', '6 days') \g /dev/null
DROP TABLE before;
CREATE TEMP TABLE before AS SELECT * FROM idem.idempotency WHERE principal_id = 'stale';
SELECT key, outcome, run, changed, attempt, resource_id, call_deadline, context, retry_after, expires_at IS NOT NULL AS expires, status, body_kept
  FROM unnest(ARRAY['alive', 'over', 'called', 'unknown', 'completed', 'gone', 'large', 'expired', 'never used']) AS key LEFT JOIN LATERAL idem_lookup('stale', key) ON true;
SELECT headers, convert_from(body, 'UTF8') AS body FROM idem_lookup('stale', 'completed');
SELECT (l.status, l.headers, l.body) = (c.status, c.headers, c.body) AS as_a_claim FROM idem_lookup('stale', 'completed') AS l, idem_try_insert('stale', 'completed', sha256('one')) AS c;
-- it writes nothing, and takes no transaction id
BEGIN READ ONLY;
SELECT key, count(l.outcome) AS rows FROM unnest(ARRAY['over', 'called', 'expired', 'never used']) AS key LEFT JOIN LATERAL idem_lookup('stale', key) AS l ON true GROUP BY key ORDER BY key;
SELECT txid_current_if_assigned();
COMMIT;
SELECT count(*) AS changed FROM before AS b JOIN idem.idempotency AS r USING (principal_id, idempotency_key) WHERE r::text <> b::text;
-- in the claiming transaction
BEGIN;
SELECT outcome FROM idem_try_insert('stale', 'looked up', sha256('one'));
SELECT outcome, run, changed FROM idem_lookup('stale', 'looked up');
ROLLBACK;
SELECT outcome FROM idem_lookup('stale', 'looked up');
SELECT outcome FROM idem_lookup('another', 'completed');

--
-- 3. Bad input
--
\pset format unaligned
\pset tuples_only on
SELECT what || E'\n  ' || pg_temp.refused(statement)
  FROM (VALUES
	(1, 'no operation', 'SELECT * FROM idem_claim_stale(NULL)'),
	(2, 'no number of rows', 'SELECT * FROM idem_claim_stale(''pay'', NULL)'),
	(3, 'no rows', 'SELECT * FROM idem_claim_stale(''pay'', 0)'),
	(4, 'negative rows', 'SELECT * FROM idem_claim_stale(''pay'', -1)'),
	(5, '1,001 rows', 'SELECT * FROM idem_claim_stale(''pay'', 1001)'),
	(6, 'no lease', 'SELECT * FROM idem_claim_stale(''pay'', 1, ''0'')'),
	(7, 'negative lease', 'SELECT * FROM idem_claim_stale(''pay'', 1, ''-1 s'')'),
	(8, 'endless lease', 'SELECT * FROM idem_claim_stale(''pay'', 1, ''178000000 years'')'),
	(9, 'look up: no principal', 'SELECT * FROM idem_lookup(NULL, ''k'')'),
	(10, 'look up: no key', 'SELECT * FROM idem_lookup(''stale'', NULL)'),
	(11, 'look up: empty key', 'SELECT * FROM idem_lookup(''stale'', '''')'),
	(12, 'look up: key of 256 characters', 'SELECT * FROM idem_lookup(''stale'', repeat(''k'', 256))'),
	(13, 'look up: 4,000 bytes', 'SELECT * FROM idem_lookup(''stale'', (SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n))'),
	(14, 'look up: line feed', 'SELECT * FROM idem_lookup(E''stale\n'', ''k'')'),
	(15, 'look up: not UTF-8', 'SELECT * FROM idem_lookup(''stale'', E''\xff'')')) AS t(n, what, statement)
 ORDER BY n;
BEGIN READ ONLY;
SELECT pg_temp.refused('SELECT * FROM idem_claim_stale(''pay'')');
COMMIT;
\pset tuples_only off
\pset format aligned
SELECT count(*) AS changed FROM before AS b JOIN idem.idempotency AS r USING (principal_id, idempotency_key) WHERE r::text <> b::text;

DELETE FROM idem.idempotency WHERE principal_id ~ '^stale';
