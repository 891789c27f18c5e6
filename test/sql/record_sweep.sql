--
-- Two retentions, tombstones, and the sweep: idem_sweep(max_rows)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
\set age :source '/sql/include/age.sql'
\i :age
-- the sweep counts all records
DELETE FROM idem.idempotency;

-- Claims a key, and completes it.
CREATE FUNCTION pg_temp.answered(k text, kept interval DEFAULT NULL) RETURNS boolean LANGUAGE SQL AS $$
	SELECT c.changed FROM idem_try_insert('sweep', k, sha256('one'), context => '{"order": 8812}', retention => kept) AS t,
		LATERAL idem_complete('sweep', k, t.attempt, 201, '{"paid": true}') AS c;
$$;
CREATE VIEW pg_temp.kept AS
	SELECT idempotency_key AS key, state, response_status AS status, response_headers AS headers, convert_from(response_body, 'UTF8') AS body, response_size AS size,
		   context, request_hash = sha256('one') AS hash, attempt IS NOT NULL AS attempt
	  FROM idem.idempotency WHERE principal_id = 'sweep' ORDER BY 1;

--
-- 1. How long: settings, and the retention of one record
--
SET idem.response_retention = '1 h';
SET idem.record_retention = '5 h';
SELECT key, pg_temp.answered(key, retention) FROM (VALUES ('settings', NULL::interval), ('30 min', '30 min'), ('3 h', '3 h'), ('30 days', '30 days'), ('a month and a day', '1 mon 1 day')) AS t(key, retention);
RESET idem.response_retention;
RESET idem.record_retention;
SELECT idempotency_key AS key, retention, extract(epoch FROM response_expires_at - completed_at)::int AS response, extract(epoch FROM expires_at - completed_at)::int AS record
  FROM idem.idempotency WHERE principal_id = 'sweep' ORDER BY 3, 4, 1;
-- in progress, a record is remembered that long after its lease
SELECT outcome, expires_at - clock_timestamp() BETWEEN '7 days 29 s' AND '7 days 30 s' AS told FROM idem_try_insert('sweep', 'in progress', sha256('one'), retention => '7 days');
SELECT extract(epoch FROM expires_at - lease_expires_at)::int AS record FROM idem.idempotency WHERE principal_id = 'sweep' AND idempotency_key = 'in progress';
-- also when a claim without one takes it over, and when its owner renews the lease
SELECT pg_temp.age('sweep', 'in progress', '1 h') \g /dev/null
SELECT outcome FROM idem_try_insert('sweep', 'in progress', sha256('one'), retention => '1 day');
SELECT extract(epoch FROM expires_at - lease_expires_at)::int AS record, retention FROM idem.idempotency WHERE principal_id = 'sweep' AND idempotency_key = 'in progress';
DELETE FROM idem.idempotency;

--
-- 2. Response, tombstone, nothing
--
SELECT pg_temp.answered('life', '10 days'), pg_temp.answered('short', '1 day');
-- nothing to do
SELECT * FROM idem_sweep();
SELECT outcome FROM idem_try_insert('sweep', 'life', sha256('one'));
-- the response is over: it is said before any sweep comes, and after
SELECT pg_temp.age('sweep', 'life', '73 h') \g /dev/null
SELECT outcome, body_kept FROM idem_try_insert('sweep', 'life', sha256('one'));
SELECT * FROM pg_temp.kept WHERE key = 'life';
SELECT * FROM idem_sweep();
SELECT * FROM pg_temp.kept WHERE key = 'life';
\x
SELECT outcome, run, changed, attempt, resource_id, context, retry_after, expires_at IS NOT NULL AS expires, status, headers, convert_from(body, 'UTF8') AS body, body_kept
  FROM idem_try_insert('sweep', 'life', sha256('one'));
\x
SELECT outcome FROM idem_try_insert('sweep', 'life', sha256('two'));
SELECT attempt FROM idem.idempotency WHERE principal_id = 'sweep' AND idempotency_key = 'life' \gset
SELECT pg_temp.refused(format('SELECT idem_complete(''sweep'', ''life'', %s, 201, ''{"paid": true}'')', :attempt)) \g (format=unaligned tuples_only=on)
-- once swept, it is not swept again
SELECT * FROM idem_sweep();
-- the record is over: it counts as never used before any sweep comes, and after
SELECT pg_temp.age('sweep', 'life', '8 days'), pg_temp.age('sweep', 'short', '25 h') \g /dev/null
BEGIN;
SELECT outcome, attempt > :attempt AS later_attempt FROM idem_try_insert('sweep', 'life', sha256('two'));
ROLLBACK;
SELECT * FROM idem_sweep();
SELECT * FROM pg_temp.kept;
SELECT outcome, attempt > :attempt AS later_attempt FROM idem_try_insert('sweep', 'life', sha256('two'));
-- a response over idem.max_response_bytes: its digest goes as well
SET idem.max_response_bytes = 4;
SELECT pg_temp.answered('large', '10 days');
RESET idem.max_response_bytes;
SELECT pg_temp.age('sweep', 'large', '73 h') \g /dev/null
SELECT outcome FROM idem_try_insert('sweep', 'large', sha256('one'));
SELECT * FROM idem_sweep();
SELECT key, status, headers, context, size FROM pg_temp.kept;
SELECT response_digest FROM idem.idempotency;
SELECT outcome, body_kept FROM idem_try_insert('sweep', 'large', sha256('one'));
SELECT * FROM idem_sweep();
DELETE FROM idem.idempotency;

--
-- 3. What never goes, and what does
--
SELECT key, (idem_try_insert('sweep', key, sha256('one'), call_timeout => call, dedup_window => dedup)).outcome
  FROM (VALUES ('no call', NULL::interval, '0'::interval), ('call', '10 s', '0'), ('call, dedup', '10 s', '1 h'), ('unknown', '10 s', '0'), ('unknown, no call', NULL, '0'), ('yielded', NULL, '0'), ('before call', NULL, '0')) AS t(key, call, dedup);
SELECT idempotency_key AS key, CASE idempotency_key WHEN 'yielded' THEN (idem_yield('sweep', idempotency_key, attempt)).changed WHEN 'before call' THEN idem_before_call('sweep', idempotency_key, attempt, '1 s') IS NOT NULL
	   ELSE (idem_mark_unknown('sweep', idempotency_key, attempt)).changed END AS done
  FROM idem.idempotency WHERE idempotency_key IN ('unknown', 'unknown, no call', 'yielded', 'before call') ORDER BY 1;
-- alive, all of them
SELECT * FROM idem_sweep();
-- lease over, but not the retention
SELECT pg_temp.age('sweep', idempotency_key, '71 h') FROM idem.idempotency \g /dev/null
SELECT * FROM idem_sweep();
SELECT pg_temp.age('sweep', idempotency_key, '10 years') FROM idem.idempotency \g /dev/null
SELECT * FROM idem_sweep();
SELECT idempotency_key AS key, state, call_started_at IS NOT NULL AS called FROM idem.idempotency ORDER BY 1;
SELECT idempotency_key AS key, (idem_try_insert('sweep', idempotency_key, sha256('one'))).outcome FROM idem.idempotency ORDER BY 1;
SELECT * FROM idem_sweep();
-- settled, they go like others
SELECT idempotency_key AS key, (idem_resolve('sweep', idempotency_key, 'not_applied', '{}', 402, '{}')).changed FROM idem.idempotency ORDER BY 1;
SELECT pg_temp.age('sweep', idempotency_key, '73 h') FROM idem.idempotency \g /dev/null
SELECT * FROM idem_sweep();
SELECT count(*) AS left FROM idem.idempotency;
-- the history of verdicts stays
SELECT count(*) AS verdicts FROM idem.resolution WHERE principal_id = 'sweep';

--
-- 4. Batches
--
SELECT count(*) FILTER (WHERE pg_temp.answered('expired ' || n, '1 day')) AS expired, count(*) FILTER (WHERE pg_temp.answered('response ' || n, '10 days')) AS tombstones, count(*) FILTER (WHERE pg_temp.answered('kept ' || n, '30 days')) AS kept
  FROM generate_series(1, 25) AS n;
SELECT pg_temp.age('sweep', idempotency_key, '80 h') FROM idem.idempotency WHERE idempotency_key !~ '^kept' \g /dev/null
-- the oldest first
SELECT pg_temp.age('sweep', 'expired 7', '1 h'), pg_temp.age('sweep', 'response 9', '1 h') \g /dev/null
SELECT * FROM idem_sweep(1);
SELECT count(*) FROM idem.idempotency WHERE idempotency_key = 'expired 7' OR (idempotency_key = 'response 9' AND response_body IS NOT NULL);
SELECT * FROM idem_sweep(10);
SELECT * FROM idem_sweep(10);
SELECT * FROM idem_sweep(10);
-- a batch looks at no record that an earlier one has dealt with
SELECT count(*) AS due FROM idem.idempotency WHERE sweep_at <= now();
SELECT * FROM idem_sweep(10);
SELECT * FROM idem_sweep(10);
SELECT count(*) AS due FROM idem.idempotency WHERE sweep_at <= now();
SELECT substring(idempotency_key FROM '^\w+') AS kind, count(*), count(response_body) AS bodies FROM idem.idempotency GROUP BY 1 ORDER BY 1;
-- rolled back, nothing went
SELECT pg_temp.age('sweep', idempotency_key, '1 year') FROM idem.idempotency \g /dev/null
BEGIN;
SELECT * FROM idem_sweep(10000);
ROLLBACK;
SELECT count(*) FROM idem.idempotency;
SELECT * FROM idem_sweep(50);
SELECT * FROM idem_sweep(50);

--
-- 5. Bad input
--
SELECT pg_temp.answered('bad', '1 day');
SELECT pg_temp.age('sweep', 'bad', '1 year') \g /dev/null
SELECT pg_temp.refused(format('SELECT idem_sweep(%s)', n)) FROM unnest(ARRAY['NULL', '0', '-1', '10001']) AS n \g (format=unaligned tuples_only=on)
SELECT pg_temp.refused(format('SELECT idem_try_insert(''sweep'', ''retention'', sha256(''one''), retention => %L)', n)) FROM unnest(ARRAY['0', '-1 s', '178000000 years', '3661 days', 'long']) AS n \g (format=unaligned tuples_only=on)
BEGIN READ ONLY;
SELECT left(pg_temp.refused('SELECT idem_sweep()'), 5);
COMMIT;
SELECT idempotency_key FROM idem.idempotency;
SELECT outcome FROM idem_try_insert('sweep', 'ten years', sha256('one'), retention => '3660 days');
SELECT * FROM idem_sweep();

DELETE FROM idem.idempotency WHERE principal_id = 'sweep';
DELETE FROM idem.resolution WHERE principal_id = 'sweep';
