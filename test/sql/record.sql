--
-- Idempotency records: idem_try_insert(...) and idem_complete(...)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused

-- What a claim answers, without what differs from run to run.
\set answer 'outcome, run, changed, attempt IS NOT NULL AS attempt, resource_id IS NOT NULL AS resource, context, retry_after, expires_at IS NOT NULL AS expires, status, body_kept'

-- Makes time pass for a record of the principal "record".
CREATE FUNCTION pg_temp.lease_over(key text) RETURNS void LANGUAGE SQL AS $$
	UPDATE idem.idempotency
	   SET lease_expires_at = clock_timestamp() - interval '1 s', claimed_at = claimed_at - interval '1 h'
	 WHERE principal_id = 'record' AND idempotency_key = key;
$$;
CREATE FUNCTION pg_temp.response_over(key text) RETURNS void LANGUAGE SQL AS $$
	UPDATE idem.idempotency SET response_expires_at = clock_timestamp() - interval '1 s'
	 WHERE principal_id = 'record' AND idempotency_key = key;
$$;
CREATE FUNCTION pg_temp.record_over(key text) RETURNS void LANGUAGE SQL AS $$
	UPDATE idem.idempotency
	   SET expires_at = clock_timestamp() - interval '1 s',
		   response_expires_at = least(response_expires_at, clock_timestamp() - interval '1 s')
	 WHERE principal_id = 'record' AND idempotency_key = key;
$$;
CREATE FUNCTION pg_temp.record(key text) RETURNS TABLE (state text, tries integer, attempt bigint, resource_id uuid, context jsonb)
LANGUAGE SQL AS $$
	SELECT r.state, r.tries, r.attempt, r.resource_id, r.context FROM idem.idempotency AS r
	 WHERE r.principal_id = 'record' AND r.idempotency_key = key;
$$;

--
-- 1. A record's life: claim, refuse others, answer, replay
--

-- no record: the caller owns a new one
SELECT :answer, status, headers, body
  FROM idem_try_insert('record', 'life', sha256('one'), 'pay', context => '{"order": 8812}');
SELECT state, tries, operation, request_hash = sha256('one') AS hash, call_started_at, call_deadline, call_xid, dedup_until,
	   response_status, response_headers, response_body, completed_at, created_at = claimed_at AS first
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'life';
-- the lease is idem.lease, the key is remembered idem.record_retention longer
SELECT extract(epoch FROM lease_expires_at - claimed_at)::int AS lease,
	   extract(epoch FROM expires_at - lease_expires_at)::int AS retention
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'life';
SELECT attempt, resource_id FROM pg_temp.record('life') \gset

-- its lease is alive: the whole answer to send is there
\x
SELECT :answer, headers, convert_from(body, 'UTF8') AS body
  FROM idem_try_insert('record', 'life', sha256('one'), 'pay', context => '{"order": 1}');
-- another request under the same key
SELECT outcome, run, changed, attempt, resource_id, call_deadline, context, retry_after, status, body_kept, headers, convert_from(body, 'UTF8') AS body
  FROM idem_try_insert('record', 'life', sha256('two'), 'pay');
\x

-- the owner answers, and gets back what to send
SELECT status, headers, body, changed
  FROM idem_complete('record', 'life', :attempt, 201, '{ "seat" : 7 }');
SELECT state, attempt = :attempt AS same_attempt, resource_id = :'resource_id' AS same_resource, tries, context FROM pg_temp.record('life');
SELECT response_status, response_headers, response_body, response_size, response_digest,
	   extract(epoch FROM response_expires_at - completed_at)::int AS response, extract(epoch FROM expires_at - completed_at)::int AS record
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'life';

-- the response is given back, the same completion again changes nothing
\x
SELECT :answer, headers, convert_from(body, 'UTF8') AS body
  FROM idem_try_insert('record', 'life', sha256('one'), 'pay');
\x
SELECT changed, status, convert_from(body, 'UTF8') AS body
  FROM idem_complete('record', 'life', :attempt, 201, '{ "seat" : 7 }');
SELECT expires_at = (SELECT expires_at FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'life') AS expiry_told
  FROM idem_try_insert('record', 'life', sha256('one'));
SELECT outcome, expires_at FROM idem_try_insert('record', 'life', sha256('other'));

-- anything else is an error: status, body, headers, attempt
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''life'', %s, %s, %L::text, %L)', attempt, status, body, headers))
  FROM (VALUES
	(:attempt, 200, '{ "seat" : 7 }', '[["content-type", "application/json"]]'),
	(:attempt, 201, '{ "seat": 7 }', '[["content-type", "application/json"]]'),
	(:attempt, 201, '{ "seat" : 7 }', '[]'),
	(:attempt, 201, '{ "seat" : 7 }', '[["Content-Type", "application/json"]]'),
	(:attempt + 1000000, 201, '{ "seat" : 7 }', '[["content-type", "application/json"]]')) AS t(attempt, status, body, headers) \g (format=unaligned tuples_only=on)
SELECT state, attempt = :attempt AS same_attempt FROM pg_temp.record('life');

--
-- 2. Replays are byte for byte
--
SELECT attempt FROM idem_try_insert('record', 'bytes', sha256('one')) \gset
SELECT status, headers, body, changed
  FROM idem_complete('record', 'bytes', :attempt, 402, '\x00fffe0d0a00e282ac80'::bytea,
	'[["B", "2"], ["a", ""], ["B", "2"], ["Content-Encoding", "gzip"], ["x-\u20ac", "a, \"b\" \\ c"]]');
SELECT outcome, status, headers, body, body_kept FROM idem_try_insert('record', 'bytes', sha256('one'));

-- an empty body is a body
SELECT attempt FROM idem_try_insert('record', 'empty', sha256('one')) \gset
SELECT status, headers, body = '' AS empty_body, changed FROM idem_complete('record', 'empty', :attempt, 204, ''::bytea, '[]');
SELECT outcome, status, headers, body = '' AS empty_body, body_kept FROM idem_try_insert('record', 'empty', sha256('one'));

-- body as bytea, text and jsonb, and as a plain literal, which is text
SELECT n, (idem_try_insert('record', 'body ' || n, sha256('one'))).outcome FROM generate_series(1, 4) AS n;
SELECT attempt AS bytea FROM pg_temp.record('body 1') \gset
SELECT attempt AS text FROM pg_temp.record('body 2') \gset
SELECT attempt AS jsonb FROM pg_temp.record('body 3') \gset
SELECT attempt AS literal FROM pg_temp.record('body 4') \gset
SELECT changed, body FROM idem_complete('record', 'body 1', :bytea, 200, '\x7b7d'::bytea);
SELECT changed, convert_from(body, 'UTF8') AS body FROM idem_complete('record', 'body 2', :text, 200, '{"b":  "€", "a": 1.0}'::text);
SELECT changed, convert_from(body, 'UTF8') AS body FROM idem_complete('record', 'body 3', :jsonb, 200, '{"b":  "€", "a": 1.0}'::jsonb);
SELECT changed, convert_from(body, 'UTF8') AS body FROM idem_complete('record', 'body 4', :literal, 200, '\x7b7d');
SELECT n, c.outcome, c.status, c.headers, c.body
  FROM generate_series(1, 4) AS n, LATERAL idem_try_insert('record', 'body ' || n, sha256('one')) AS c ORDER BY n;
-- the three are one function: what one stored, another may repeat
SELECT changed FROM idem_complete('record', 'body 1', :bytea, 200, '{}'::text);
SELECT changed FROM idem_complete('record', 'body 1', :bytea, 200, '{}'::jsonb);

-- text is stored as UTF-8, whatever the client speaks
SELECT attempt FROM idem_try_insert('record', 'latin1', sha256('one')) \gset
SET client_encoding = 'LATIN1';
SELECT body FROM idem_complete('record', 'latin1', :attempt, 200, U&'\00e9'::text);
RESET client_encoding;

-- a body over idem.max_response_bytes: completed all the same, never run again
SET idem.max_response_bytes = 8;
SELECT attempt FROM idem_try_insert('record', 'at the limit', sha256('one')) \gset
SELECT status, convert_from(body, 'UTF8') AS body, changed FROM idem_complete('record', 'at the limit', :attempt, 201, '12345678'::text);
SELECT outcome, status, convert_from(body, 'UTF8') AS body, body_kept FROM idem_try_insert('record', 'at the limit', sha256('one'));
SELECT attempt FROM idem_try_insert('record', 'over the limit', sha256('one')) \gset
SELECT status, headers, convert_from(body, 'UTF8') AS body, changed FROM idem_complete('record', 'over the limit', :attempt, 201, '123456789'::text);
RESET idem.max_response_bytes;
SELECT outcome, run, changed, status, headers, body, body_kept FROM idem_try_insert('record', 'over the limit', sha256('one'));
SELECT state, response_status, response_body, response_size, response_digest = sha256('123456789') AS digest
  FROM idem.idempotency JOIN pg_temp.record('over the limit') USING (state, attempt) WHERE principal_id = 'record' AND idempotency_key = 'over the limit';
-- its repeat is told apart by the digest
SELECT changed FROM idem_complete('record', 'over the limit', :attempt, 201, '123456789'::text);
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''over the limit'', %s, 201, ''12345678x''::text)', :attempt)) \g (format=unaligned tuples_only=on)

--
-- 3. The lease is over
--

-- no call was started: resumed, with the same resource and context, by a new attempt
SELECT outcome FROM idem_try_insert('record', 'resumed', sha256('one'), 'pay', context => '{"order": 8812}');
SELECT attempt AS first, resource_id FROM pg_temp.record('resumed') \gset
SELECT pg_temp.lease_over('resumed') \g /dev/null
SELECT :answer, attempt > :first AS later_attempt, resource_id = :'resource_id' AS same_resource, call_deadline
  FROM idem_try_insert('record', 'resumed', sha256('one'), 'other', context => '{"order": 1}');
SELECT state, tries, attempt > :first AS later_attempt, resource_id = :'resource_id' AS same_resource, context FROM pg_temp.record('resumed');
SELECT attempt AS second FROM pg_temp.record('resumed') \gset
-- the new owner's lease is alive
SELECT outcome FROM idem_try_insert('record', 'resumed', sha256('one'));
-- the first owner is fenced off, whatever it says, and its rows roll back
CREATE TEMP TABLE payment (attempt bigint);
BEGIN;
INSERT INTO payment VALUES (:first);
\set VERBOSITY sqlstate
SELECT idem_complete('record', 'resumed', :first, 201, '{}');
\set VERBOSITY default
COMMIT;
SELECT count(*) AS payments FROM payment;
SELECT state, attempt = :second AS second_attempt FROM pg_temp.record('resumed');
SELECT changed FROM idem_complete('record', 'resumed', :second, 201, '{"by": "the second"}');
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''resumed'', %s, 201, ''{"by": "the second"}'')', :first)) \g (format=unaligned tuples_only=on)
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_try_insert('record', 'resumed', sha256('one'));

-- nobody took it over: the late owner still completes
SELECT attempt FROM idem_try_insert('record', 'late', sha256('one')) \gset
SELECT pg_temp.lease_over('late') \g /dev/null
SELECT changed FROM idem_complete('record', 'late', :attempt, 200, '{}');

-- the lease that was asked for, and Retry-After: the least of lease left and time elapsed
SELECT outcome FROM idem_try_insert('record', 'retry', sha256('one'), lease => '90 min');
SELECT extract(epoch FROM lease_expires_at - claimed_at)::int AS lease FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'retry';
SELECT retry_after, headers FROM idem_try_insert('record', 'retry', sha256('one'));
UPDATE idem.idempotency SET claimed_at = clock_timestamp() - interval '1000 s' WHERE principal_id = 'record' AND idempotency_key = 'retry';
SELECT retry_after, headers FROM idem_try_insert('record', 'retry', sha256('one'));
UPDATE idem.idempotency SET lease_expires_at = clock_timestamp() + interval '700 s' WHERE principal_id = 'record' AND idempotency_key = 'retry';
SELECT retry_after, headers FROM idem_try_insert('record', 'retry', sha256('one'));
SET idem.lease = '5 min';
SELECT outcome FROM idem_try_insert('record', 'lease of the session', sha256('one'));
RESET idem.lease;
SELECT extract(epoch FROM lease_expires_at - claimed_at)::int AS lease FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'lease of the session';

-- attempts that ended without an answer: at the limit it becomes UNKNOWN
SET idem.max_tries = 3;
\set next_try 'SELECT outcome, run, changed FROM idem_try_insert(\'record\', \'tries\', sha256(\'one\')); SELECT pg_temp.lease_over(\'tries\') \\g /dev/null'
:next_try
:next_try
:next_try
:next_try
:next_try
SELECT state, tries FROM pg_temp.record('tries');
RESET idem.max_tries;

--
-- 4. The external call
--

-- The deadline is the claim plus call_timeout; the lease ends idem.call_margin
-- after it at the earliest.
SELECT outcome, call_deadline IS NOT NULL AS deadline, expires_at
  FROM idem_try_insert('record', 'call, short lease', sha256('one'), lease => '1 s', call_timeout => '100 s');
SELECT outcome, call_deadline IS NOT NULL AS deadline
  FROM idem_try_insert('record', 'call, long lease', sha256('one'), lease => '1000 s', call_timeout => '100 s', dedup_window => '1 h');
SELECT outcome, call_deadline
  FROM idem_try_insert('record', 'no call', sha256('one'), lease => '1 s', dedup_window => '1 h');
SELECT idempotency_key, extract(epoch FROM call_deadline - call_started_at)::int AS call, call_started_at = claimed_at AS starts_now,
	   extract(epoch FROM lease_expires_at - call_deadline)::int AS margin, extract(epoch FROM dedup_until - call_started_at)::int AS dedup,
	   call_xid = claim_xid AS marked_by_claim, expires_at
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key LIKE '%call,%' ORDER BY idempotency_key;
SELECT dedup_until, call_started_at FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'no call';
SET idem.call_margin = '20 s';
SELECT outcome FROM idem_try_insert('record', 'call, margin', sha256('one'), call_timeout => '100 s');
RESET idem.call_margin;
SELECT extract(epoch FROM lease_expires_at - call_deadline)::int AS margin FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'call, margin';
SELECT call_deadline FROM idem_try_insert('record', 'call, told', sha256('one'), call_timeout => '100 s') \gset
SELECT call_deadline = :'call_deadline' AS told FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'call, told';

-- A transaction must not span the call: what marked it can't complete it, not
-- even from another savepoint.
BEGIN;
SELECT attempt FROM idem_try_insert('record', 'spanned', sha256('one'), call_timeout => '10 s') \gset
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''spanned'', %s, 201, ''{}'')', :attempt)) \g (format=unaligned tuples_only=on)
SAVEPOINT s;
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''spanned'', %s, 201, ''{}'')', :attempt)) \g (format=unaligned tuples_only=on)
COMMIT;
SELECT state FROM pg_temp.record('spanned');
SELECT changed FROM idem_complete('record', 'spanned', :attempt, 201, '{}');
BEGIN;
SAVEPOINT s;
SELECT attempt FROM idem_try_insert('record', 'spanned, savepoint', sha256('one'), call_timeout => '10 s') \gset
RELEASE SAVEPOINT s;
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''spanned, savepoint'', %s, 201, ''{}'')', :attempt)) \g (format=unaligned tuples_only=on)
COMMIT;
-- a claim without a call and its completion may share one
BEGIN;
SELECT attempt FROM idem_try_insert('record', 'one transaction', sha256('one')) \gset
SELECT changed FROM idem_complete('record', 'one transaction', :attempt, 201, '{}');
SELECT outcome FROM idem_try_insert('record', 'one transaction', sha256('one'));
COMMIT;
SELECT outcome FROM idem_try_insert('record', 'one transaction', sha256('one'));

-- The call can't be repeated: the outcome is unknown, once as a change.
SELECT attempt FROM idem_try_insert('record', 'unknown', sha256('one'), call_timeout => '10 s', context => '{"order": 8812}') \gset
SELECT pg_temp.lease_over('unknown') \g /dev/null
\x
SELECT outcome, run, changed, attempt, resource_id, context, retry_after >= 1 AS retry_after, expires_at, status, body_kept,
	   headers = format('[["content-type", "application/problem+json"], ["retry-after", "%s"]]', retry_after)::jsonb AS headers, convert_from(body, 'UTF8') AS body
  FROM idem_try_insert('record', 'unknown', sha256('one'), call_timeout => '10 s');
SELECT outcome, run, changed, attempt, resource_id, context, retry_after >= 1 AS retry_after, expires_at, status, body_kept,
	   headers = format('[["content-type", "application/problem+json"], ["retry-after", "%s"]]', retry_after)::jsonb AS headers, convert_from(body, 'UTF8') AS body
  FROM idem_try_insert('record', 'unknown', sha256('one'), call_timeout => '10 s');
\x
SELECT state, attempt = :attempt AS same_attempt, context, expires_at
  FROM idem.idempotency JOIN pg_temp.record('unknown') USING (state, attempt, context) WHERE principal_id = 'record' AND idempotency_key = 'unknown';
-- a claim that marks no call hears the same
SELECT outcome, changed FROM idem_try_insert('record', 'unknown', sha256('one'));
-- it never expires by itself
UPDATE idem.idempotency SET created_at = created_at - interval '10 years', claimed_at = claimed_at - interval '10 years',
	   lease_expires_at = lease_expires_at - interval '10 years', call_started_at = call_started_at - interval '10 years',
	   call_deadline = call_deadline - interval '10 years'
 WHERE principal_id = 'record' AND idempotency_key = 'unknown';
SELECT outcome, changed, expires_at FROM idem_try_insert('record', 'unknown', sha256('one'));
-- the attempt that made the call may still answer, no other
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''unknown'', %s, 201, ''{}'')', :attempt - 1)) \g (format=unaligned tuples_only=on)
SELECT changed FROM idem_complete('record', 'unknown', :attempt, 201, '{"late": true}');
SELECT outcome, status, convert_from(body, 'UTF8') AS body FROM idem_try_insert('record', 'unknown', sha256('one'));

-- A late answer before anybody asked: as if in time.
SELECT attempt FROM idem_try_insert('record', 'late answer', sha256('one'), call_timeout => '10 s') \gset
SELECT pg_temp.lease_over('late answer') \g /dev/null
SELECT changed FROM idem_complete('record', 'late answer', :attempt, 201, '{}');

-- The far side honours the key: resumed, with a new call, and dedup_until does
-- not move.
SELECT attempt AS first FROM idem_try_insert('record', 'dedup', sha256('one'), call_timeout => '10 s', dedup_window => '1 h') \gset
SELECT dedup_until, call_started_at FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'dedup' \gset
SELECT pg_temp.lease_over('dedup') \g /dev/null
SELECT :answer, attempt > :first AS later_attempt, call_deadline IS NOT NULL AS deadline
  FROM idem_try_insert('record', 'dedup', sha256('one'), call_timeout => '20 s', dedup_window => '2 h');
SELECT dedup_until = :'dedup_until' AS dedup_same, call_started_at > :'call_started_at' AS call_anew,
	   extract(epoch FROM call_deadline - call_started_at)::int AS call, tries
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'dedup';
-- the first attempt is fenced off, also when its answer comes from the far side
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''dedup'', %s, 201, ''{}'')', :first)) \g (format=unaligned tuples_only=on)
-- a call that would end after dedup_until: unknown; one that ends before: resumed
SELECT pg_temp.lease_over('dedup') \g /dev/null
UPDATE idem.idempotency SET dedup_until = clock_timestamp() + interval '1000 s' WHERE principal_id = 'record' AND idempotency_key = 'dedup';
BEGIN;
SELECT outcome, changed FROM idem_try_insert('record', 'dedup', sha256('one'), call_timeout => '990 s', dedup_window => '1 h');
ROLLBACK;
SELECT outcome, changed FROM idem_try_insert('record', 'dedup', sha256('one'), call_timeout => '1010 s', dedup_window => '1 h');
-- the window is over
SELECT outcome FROM idem_try_insert('record', 'window over', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
SELECT pg_temp.lease_over('window over') \g /dev/null
UPDATE idem.idempotency SET dedup_until = clock_timestamp() - interval '1 s' WHERE principal_id = 'record' AND idempotency_key = 'window over';
SELECT outcome, changed FROM idem_try_insert('record', 'window over', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
SELECT outcome FROM idem_try_insert('record', 'window over, no new call', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
SELECT pg_temp.lease_over('window over, no new call') \g /dev/null
UPDATE idem.idempotency SET dedup_until = clock_timestamp() - interval '1 s' WHERE principal_id = 'record' AND idempotency_key = 'window over, no new call';
SELECT outcome, changed FROM idem_try_insert('record', 'window over, no new call', sha256('one'));

-- An attempt that resumes and marks no call does not wipe out that one was
-- made: the record does not expire, and once the window is over it is unknown.
SELECT outcome FROM idem_try_insert('record', 'call remembered', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
SELECT pg_temp.lease_over('call remembered') \g /dev/null
SELECT outcome, call_deadline, expires_at FROM idem_try_insert('record', 'call remembered', sha256('one'));
SELECT expires_at FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'call remembered';
SELECT pg_temp.lease_over('call remembered') \g /dev/null
UPDATE idem.idempotency SET dedup_until = clock_timestamp() - interval '1 s' WHERE principal_id = 'record' AND idempotency_key = 'call remembered';
SELECT outcome, changed FROM idem_try_insert('record', 'call remembered', sha256('one'));

-- An attempt before made the call, this one only completes: one transaction will do.
SELECT outcome FROM idem_try_insert('record', 'resumed without call', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
SELECT pg_temp.lease_over('resumed without call') \g /dev/null
BEGIN;
SELECT attempt, outcome FROM idem_try_insert('record', 'resumed without call', sha256('one')) \gset
SELECT :'outcome' AS outcome, changed FROM idem_complete('record', 'resumed without call', :attempt, 201, '{}');
COMMIT;
-- the resuming claim marks a call: not in its transaction
SELECT outcome FROM idem_try_insert('record', 'resumed with call', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
SELECT pg_temp.lease_over('resumed with call') \g /dev/null
BEGIN;
SELECT attempt, outcome FROM idem_try_insert('record', 'resumed with call', sha256('one'), call_timeout => '10 s', dedup_window => '1 h') \gset
SELECT :'outcome' AS outcome, pg_temp.refused(format('SELECT idem_complete(''record'', ''resumed with call'', %s, 201, ''{}'')', :attempt)) \g (format=unaligned tuples_only=on)
ROLLBACK;

--
-- 5. Another hash is a mismatch in every state but expired, and says nothing
--
SELECT attempt AS alive FROM idem_try_insert('record', 'other: alive', sha256('one'), call_timeout => '10 s') \gset
SELECT attempt AS over FROM idem_try_insert('record', 'other: lease over', sha256('one')) \gset
SELECT attempt AS resumable FROM idem_try_insert('record', 'other: resumable', sha256('one'), call_timeout => '10 s', dedup_window => '1 h') \gset
SELECT attempt AS lost FROM idem_try_insert('record', 'other: call lost', sha256('one'), call_timeout => '10 s') \gset
SELECT attempt AS unknown FROM idem_try_insert('record', 'other: unknown', sha256('one'), call_timeout => '10 s') \gset
SELECT attempt AS completed FROM idem_try_insert('record', 'other: completed', sha256('one')) \gset
SELECT attempt AS gone FROM idem_try_insert('record', 'other: response gone', sha256('one')) \gset
SELECT attempt AS expired FROM idem_try_insert('record', 'other: expired', sha256('one')) \gset
SELECT pg_temp.lease_over(k) FROM unnest(ARRAY['other: lease over', 'other: resumable', 'other: call lost', 'other: unknown']) AS k \g /dev/null
SELECT outcome FROM idem_try_insert('record', 'other: unknown', sha256('one'));
SELECT changed FROM idem_complete('record', 'other: completed', :completed, 201, '{}');
SELECT changed FROM idem_complete('record', 'other: response gone', :gone, 201, '{}');
SELECT changed FROM idem_complete('record', 'other: expired', :expired, 201, '{}');
SELECT pg_temp.response_over('other: response gone') \g /dev/null
SELECT pg_temp.record_over('other: expired') \g /dev/null
CREATE TEMP TABLE before AS SELECT * FROM idem.idempotency WHERE principal_id = 'record';
SELECT k AS key, outcome, run, changed, attempt IS NULL AND resource_id IS NULL AND call_deadline IS NULL AND context IS NULL AND retry_after IS NULL AND body_kept IS NULL AS silent,
	   status, headers, dense_rank() OVER (ORDER BY status, headers, body) AS answer
  FROM unnest(ARRAY['other: alive', 'other: lease over', 'other: resumable', 'other: call lost', 'other: unknown', 'other: completed', 'other: response gone']) AS k,
	   LATERAL idem_try_insert('record', k, sha256('two'), call_timeout => '10 s', dedup_window => '1 h') ORDER BY 1;
SELECT count(*) AS changed FROM before JOIN idem.idempotency AS after USING (principal_id, idempotency_key) WHERE before::text <> after::text;
-- in the claiming transaction too
BEGIN;
SELECT outcome FROM idem_try_insert('record', 'other: yours', sha256('one'));
SELECT outcome FROM idem_try_insert('record', 'other: yours', sha256('two'));
ROLLBACK;
-- hashes that differ in the last byte, or in length alone
SELECT k AS hash, outcome FROM unnest(ARRAY['\x00000000000000000000000000000000'::bytea, '\x0000000000000000000000000000000000', '\x00000000000000000000000000000001', '\x00000000000000000000000000000000']) AS k,
	   LATERAL idem_try_insert('record', 'other: bytes', k);
SELECT outcome, run, changed FROM idem_try_insert('record', 'other: expired', sha256('two'));

--
-- 6. Retention: the response goes first, then the record
--
SET idem.response_retention = '1 h';
SET idem.record_retention = '5 h';
SELECT attempt AS first FROM idem_try_insert('record', 'retention', sha256('one'), context => '{"order": 8812}') \gset
SELECT extract(epoch FROM expires_at - lease_expires_at)::int AS record FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'retention';
SELECT resource_id FROM pg_temp.record('retention') \gset
SELECT changed FROM idem_complete('record', 'retention', :first, 201, '{"first": true}');
RESET idem.response_retention;
RESET idem.record_retention;
SELECT extract(epoch FROM response_expires_at - completed_at)::int AS response, extract(epoch FROM expires_at - completed_at)::int AS record
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'retention';
-- a response is not replayed longer than its key is remembered
SET idem.response_retention = '5 h';
SET idem.record_retention = '1 h';
SELECT attempt FROM idem_try_insert('record', 'retention, response longer', sha256('one')) \gset
SELECT changed FROM idem_complete('record', 'retention, response longer', :attempt, 201, '{}');
RESET idem.response_retention;
RESET idem.record_retention;
SELECT extract(epoch FROM response_expires_at - completed_at)::int AS response, extract(epoch FROM expires_at - completed_at)::int AS record
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'retention, response longer';
SELECT pg_temp.response_over('retention') \g /dev/null
\x
SELECT :answer, headers, convert_from(body, 'UTF8') AS body FROM idem_try_insert('record', 'retention', sha256('one'));
\x
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''retention'', %s, 201, ''{"first": true}'')', :first)) \g (format=unaligned tuples_only=on)
-- the key counts as never used: a new record in every respect
SELECT pg_temp.record_over('retention') \g /dev/null
SELECT :answer, attempt > :first AS later_attempt, resource_id <> :'resource_id' AS new_resource
  FROM idem_try_insert('record', 'retention', sha256('other'), 'again', context => '{"order": 2}');
SELECT state, tries, operation, context, request_hash = sha256('other') AS new_hash, response_status, response_headers, response_body, response_size,
	   completed_at, response_expires_at, created_at = claimed_at AS new_record
  FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'retention';
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''retention'', %s, 201, ''{"first": true}'')', :first)) \g (format=unaligned tuples_only=on)
-- a completion that comes when the record has expired finds none
SELECT attempt FROM idem_try_insert('record', 'expired', sha256('one')) \gset
SELECT changed FROM idem_complete('record', 'expired', :attempt, 201, '{}');
SELECT pg_temp.record_over('expired') \g /dev/null
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''expired'', %s, 201, ''{}'')', :attempt)) \g (format=unaligned tuples_only=on)
SELECT attempt FROM idem_try_insert('record', 'expired, no answer', sha256('one')) \gset
SELECT pg_temp.lease_over('expired, no answer') \g /dev/null
SELECT pg_temp.record_over('expired, no answer') \g /dev/null
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''expired, no answer'', %s, 201, ''{}'')', :attempt)) \g (format=unaligned tuples_only=on)
SELECT outcome, changed FROM idem_try_insert('record', 'expired, no answer', sha256('two'));
SELECT tries FROM pg_temp.record('expired, no answer');
-- there never was one
SELECT pg_temp.refused('SELECT idem_complete(''record'', ''never claimed'', 1, 201, ''{}'')') \g (format=unaligned tuples_only=on)

--
-- 7. Transactions and savepoints
--

-- claimed earlier in this transaction
BEGIN;
SELECT outcome FROM idem_try_insert('record', 'yours', sha256('one'));
\x
SELECT :answer, headers, convert_from(body, 'UTF8') AS body FROM idem_try_insert('record', 'yours', sha256('one'));
\x
SAVEPOINT s;
SELECT outcome FROM idem_try_insert('record', 'yours', sha256('one'));
COMMIT;
SELECT outcome FROM idem_try_insert('record', 'yours', sha256('one'));
SELECT pg_temp.lease_over('yours') \g /dev/null
BEGIN;
SELECT outcome FROM idem_try_insert('record', 'yours', sha256('one'));
SELECT outcome FROM idem_try_insert('record', 'yours', sha256('one'));
ROLLBACK;
-- the take-over was rolled back
SELECT outcome FROM idem_try_insert('record', 'yours', sha256('one'));

-- nobody takes a record over from itself; who comes after the commit may
BEGIN;
SELECT outcome FROM idem_try_insert('record', 'yours, no call', sha256('one'));
SELECT outcome FROM idem_try_insert('record', 'yours, call', sha256('one'), call_timeout => '1 s');
SELECT pg_temp.lease_over('yours, no call'), pg_temp.lease_over('yours, call') \g /dev/null
SELECT outcome, retry_after FROM idem_try_insert('record', 'yours, no call', sha256('one'));
SELECT outcome, retry_after FROM idem_try_insert('record', 'yours, call', sha256('one'));
COMMIT;
SELECT outcome FROM idem_try_insert('record', 'yours, no call', sha256('one'));
SELECT outcome FROM idem_try_insert('record', 'yours, call', sha256('one'));

-- An attempt number never repeats: a claim that was rolled back can't complete
-- the next one's record.
BEGIN;
SAVEPOINT s;
SELECT outcome, attempt AS first, resource_id FROM idem_try_insert('record', 'savepoint', sha256('one')) \gset
ROLLBACK TO SAVEPOINT s;
SELECT outcome, attempt > :first AS later_attempt FROM idem_try_insert('record', 'savepoint', sha256('one'));
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''savepoint'', %s, 201, ''{}'')', :first)) \g (format=unaligned tuples_only=on)
COMMIT;
SELECT attempt > :first AS later_attempt, state FROM pg_temp.record('savepoint');
-- the same for take-overs
SELECT pg_temp.lease_over('savepoint') \g /dev/null
BEGIN;
SAVEPOINT s;
SELECT outcome, attempt AS first FROM idem_try_insert('record', 'savepoint', sha256('one')) \gset
ROLLBACK TO SAVEPOINT s;
SELECT outcome, attempt > :first AS later_attempt FROM idem_try_insert('record', 'savepoint', sha256('one'));
COMMIT;
-- a transaction that was rolled back leaves no record
BEGIN;
SELECT outcome, attempt AS first FROM idem_try_insert('record', 'rolled back', sha256('one')) \gset
ROLLBACK;
SELECT count(*) FROM pg_temp.record('rolled back');
SELECT outcome, attempt > :first AS later_attempt FROM idem_try_insert('record', 'rolled back', sha256('two'));

-- two principals may use one key; keys that look alike are different keys
SELECT outcome, attempt AS mine, resource_id FROM idem_try_insert('record', 'shared', sha256('one')) \gset
SELECT outcome, attempt <> :mine AS own_attempt, attempt AS theirs, resource_id <> :'resource_id' AS own_resource FROM idem_try_insert('record 2', 'shared', sha256('two')) \gset
SELECT :'outcome' AS outcome, :'own_attempt' AS own_attempt, :'own_resource' AS own_resource;
SELECT pg_temp.refused(format('SELECT idem_complete(''record'', ''shared'', %s, 201, ''{}'')', :theirs)) \g (format=unaligned tuples_only=on)
SELECT changed FROM idem_complete('record 2', 'shared', :theirs, 201, '{"whose": "record 2"}');
SELECT outcome FROM idem_try_insert('record', 'shared', sha256('one'));
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_try_insert('record 2', 'shared', sha256('two'));
SELECT k AS key, outcome FROM unnest(ARRAY['alike', 'Alike', 'alike ', ' alike', 'al ike', U&'alik\00e9', U&'alike\0301', '%', 'a%', 'record']) AS k, LATERAL idem_try_insert('record', k, sha256('one'));

--
-- 8. Look first: what changes nothing writes nothing and takes no transaction id
--
CREATE TABLE record_sequence AS SELECT last_value FROM idem.attempt;
BEGIN;
SELECT k AS key, outcome, changed FROM unnest(ARRAY['life', 'retry', 'over the limit', 'other: unknown', 'other: response gone']) AS k, LATERAL idem_try_insert('record', k, sha256('one')) ORDER BY k;
SELECT outcome FROM idem_try_insert('record', 'life', sha256('two'));
SELECT txid_current_if_assigned();
COMMIT;
SELECT (SELECT last_value FROM idem.attempt) = last_value AS no_attempt_used FROM record_sequence;
DROP TABLE record_sequence;

SELECT outcome FROM idem_try_insert('record', 'read only, expired', sha256('two'));
SELECT pg_temp.lease_over('read only, expired') \g /dev/null
SELECT pg_temp.record_over('read only, expired') \g /dev/null
BEGIN READ ONLY;
SELECT k AS key, outcome, status, changed FROM unnest(ARRAY['life', 'retry', 'over the limit', 'other: unknown', 'other: response gone']) AS k, LATERAL idem_try_insert('record', k, sha256('one')) ORDER BY k;
SELECT outcome FROM idem_try_insert('record', 'life', sha256('two'));
-- it would become UNKNOWN: answered without writing
SELECT outcome, changed, status FROM idem_try_insert('record', 'other: call lost', sha256('one'));
SELECT txid_current_if_assigned();
-- it would have to write
SELECT pg_temp.refused('SELECT idem_try_insert(''record'', ''read only'', sha256(''one''))') \g (format=unaligned tuples_only=on)
SELECT pg_temp.refused('SELECT idem_try_insert(''record'', ''other: lease over'', sha256(''one''))') \g (format=unaligned tuples_only=on)
SELECT pg_temp.refused('SELECT idem_try_insert(''record'', ''read only, expired'', sha256(''one''))') \g (format=unaligned tuples_only=on)
SELECT left(pg_temp.refused(format('SELECT idem_complete(''record'', ''other: alive'', %s, 201, ''{}'')', :alive)), 5) \g (format=unaligned tuples_only=on)
COMMIT;
SELECT state FROM pg_temp.record('other: call lost');
SELECT outcome, changed FROM idem_try_insert('record', 'other: call lost', sha256('one'));

--
-- 9. Bad input: refused with a hint, and nothing is written
--
CREATE TEMP TABLE count_before AS SELECT count(*) FROM idem.idempotency;
\pset format unaligned
\pset tuples_only on
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT idem_try_insert(%s)', arguments))
  FROM (VALUES
	(1, 'no principal', 'NULL, ''bad'', sha256(''one'')'),
	(2, 'no key', '''record'', NULL, sha256(''one'')'),
	(3, 'no hash', '''record'', ''bad'', NULL'),
	(4, 'empty principal', ''''', ''bad'', sha256(''one'')'),
	(5, 'empty key', '''record'', '''', sha256(''one'')'),
	(6, 'principal of 256 characters', 'repeat(''p'', 256), ''bad'', sha256(''one'')'),
	(7, 'key of 256 characters', '''record'', repeat(''k'', 256), sha256(''one'')'),
	(8, 'key of 256 long characters', '''record'', repeat(U&''\+01F602'', 256), sha256(''one'')'),
	(9, 'key of 4,000 bytes that do not compress', '''record'', (SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n), sha256(''one'')'),
	(10, 'tab in the principal', 'E''a\tb'', ''bad'', sha256(''one'')'),
	(11, 'line feed in the key', '''record'', E''a\n'', sha256(''one'')'),
	(12, 'control character in the key', '''record'', E''\x01'', sha256(''one'')'),
	(13, 'delete in the key', '''record'', E''a\x7f'', sha256(''one'')'),
	(14, 'next line, U+0085, in the key', '''record'', U&''a\0085'', sha256(''one'')'),
	(15, 'not UTF-8', '''record'', E''\xff'', sha256(''one'')'),
	(16, 'a zero byte', '''record'', E''\x00'', sha256(''one'')'),
	(17, 'empty hash', '''record'', ''bad'', '''''),
	(18, 'hash of 15 bytes', '''record'', ''bad'', decode(repeat(''00'', 15), ''hex'')'),
	(19, 'hash of 65 bytes', '''record'', ''bad'', decode(repeat(''00'', 65), ''hex'')'),
	(20, 'no lease', '''record'', ''bad'', sha256(''one''), lease => ''0'''),
	(21, 'negative lease', '''record'', ''bad'', sha256(''one''), lease => ''-1 s'''),
	(22, 'negative lease in parts', '''record'', ''bad'', sha256(''one''), lease => ''1 day -25 hours'''),
	(23, 'endless lease', '''record'', ''bad'', sha256(''one''), lease => ''178000000 years'''),
	(24, 'no time for the call', '''record'', ''bad'', sha256(''one''), call_timeout => ''0'''),
	(25, 'negative time for the call', '''record'', ''bad'', sha256(''one''), call_timeout => ''-1 ms'''),
	(26, 'endless call', '''record'', ''bad'', sha256(''one''), call_timeout => ''178000000 years'''),
	(27, 'negative window', '''record'', ''bad'', sha256(''one''), call_timeout => ''1 s'', dedup_window => ''-1 s'''),
	(28, 'endless window', '''record'', ''bad'', sha256(''one''), call_timeout => ''1 s'', dedup_window => ''178000000 years'''),
	(29, 'a time that is none', '''record'', ''bad'', sha256(''one''), lease => ''soon'''),
	(30, 'context that is no JSON', '''record'', ''bad'', sha256(''one''), context => ''{order: 1}''')) AS t(n, what, arguments)
 ORDER BY n;
SELECT attempt FROM idem_try_insert('record', 'bad completion', sha256('one')) \gset
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT idem_complete(%s)', replace(arguments, '$', :'attempt')))
  FROM (VALUES
	(1, 'no principal', 'NULL, ''bad completion'', $, 201, ''{}'''),
	(2, 'no key', '''record'', NULL, $, 201, ''{}'''),
	(3, 'no attempt', '''record'', ''bad completion'', NULL, 201, ''{}'''),
	(4, 'no status', '''record'', ''bad completion'', $, NULL, ''{}'''),
	(5, 'no body, bytea', '''record'', ''bad completion'', $, 201, NULL::bytea'),
	(6, 'no body, text', '''record'', ''bad completion'', $, 201, NULL::text'),
	(7, 'no body, jsonb', '''record'', ''bad completion'', $, 201, NULL::jsonb'),
	(8, 'no headers', '''record'', ''bad completion'', $, 201, ''{}'', NULL'),
	(9, 'empty principal', ''''', ''bad completion'', $, 201, ''{}'''),
	(10, 'key of 256 characters', '''record'', repeat(''k'', 256), $, 201, ''{}'''),
	(11, 'line feed in the key', '''record'', E''bad\ncompletion'', $, 201, ''{}'''),
	(12, 'status 99', '''record'', ''bad completion'', $, 99, ''{}'''),
	(13, 'status 600', '''record'', ''bad completion'', $, 600, ''{}'''),
	(14, 'status -201', '''record'', ''bad completion'', $, -201, ''{}'''),
	(15, 'headers as an object', '''record'', ''bad completion'', $, 201, ''{}'', ''{"content-type": "text/plain"}'''),
	(16, 'headers as null', '''record'', ''bad completion'', $, 201, ''{}'', ''null'''),
	(17, 'headers as a string', '''record'', ''bad completion'', $, 201, ''{}'', ''"a"'''),
	(18, 'header without value', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a"]]'''),
	(19, 'header of three', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a", "b", "c"]]'''),
	(20, 'header without name', '''record'', ''bad completion'', $, 201, ''{}'', ''[["", "b"]]'''),
	(21, 'header with a number', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a", 1]]'''),
	(22, 'header with null', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a", null]]'''),
	(23, 'header in a header', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a", ["b"]]]'''),
	(24, 'one header, flat', '''record'', ''bad completion'', $, 201, ''{}'', ''["a", "b"]'''),
	(25, 'the second header is bad', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a", "b"], {}]'''),
	(26, 'body that is no JSON', '''record'', ''bad completion'', $, 201, ''{seat: 7}''::jsonb'),
	(27, 'no body given', '''record'', ''bad completion'', $, 201'),
	(28, 'header with a line feed', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a", "b\nset-cookie: c"]]'''),
	(29, 'header name with a carriage return', '''record'', ''bad completion'', $, 201, ''{}'', ''[["a\r", "b"]]''')) AS t(n, what, arguments)
 ORDER BY n;
\pset tuples_only off
\pset format aligned
SELECT count(*) - (SELECT count FROM count_before) AS written FROM idem.idempotency;
SELECT state, attempt = :attempt AS same_attempt FROM pg_temp.record('bad completion');
-- the limits themselves are fine
SELECT n, outcome FROM (VALUES
	(1, repeat('p', 255), repeat('k', 255), decode(repeat('00', 16), 'hex')),
	(2, repeat(U&'\+01F602', 255), repeat(U&'\+01F602', 255), decode(repeat('00', 64), 'hex')),
	(3, 'record', '"quotes" and '' and \ and ' || U&'\00a0\3042', sha256('one'))) AS t(n, p, k, h), LATERAL idem_try_insert(p, k, h) ORDER BY n;
SELECT outcome FROM idem_try_insert('record', 'shortest', sha256('one'), lease => '1 us', call_timeout => '1 us');
SELECT outcome FROM idem_try_insert('record', 'no window', sha256('one'), call_timeout => '1 s', dedup_window => NULL);
SELECT dedup_until FROM idem.idempotency WHERE principal_id = 'record' AND idempotency_key = 'no window';
SELECT status, changed FROM idem_complete('record', 'bad completion', :attempt, 100, '{}', '[]');
SELECT attempt FROM idem_try_insert('record', 'status 599', sha256('one')) \gset
SELECT status, changed FROM idem_complete('record', 'status 599', :attempt, 599, '{}', '[]');

-- no path leaves a record without a lease or an owner, or half an answer
SELECT string_agg(attname, ' ' ORDER BY attnum) AS never_null
  FROM pg_attribute WHERE attrelid = 'idem.idempotency'::regclass AND attnotnull AND attnum > 0;
SELECT count(*) AS half FROM idem.idempotency
 WHERE (state = 'COMPLETED') <> (response_status IS NOT NULL AND response_headers IS NOT NULL AND response_size IS NOT NULL AND response_expires_at IS NOT NULL)
	OR (response_body IS NOT NULL AND response_digest IS NOT NULL)
	OR (state = 'UNKNOWN' AND expires_at IS NOT NULL);

DELETE FROM idem.idempotency;
