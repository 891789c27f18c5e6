--
-- What the owner of a record, and an operator, do with it: idem_before_call,
-- idem_mark_unknown, idem_yield, idem_resolve
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
\set age :source '/sql/include/age.sql'
\i :age

CREATE FUNCTION pg_temp.state(key text) RETURNS text LANGUAGE SQL AS $$
	SELECT r.state FROM idem.idempotency AS r WHERE r.principal_id = 'owner' AND r.idempotency_key = key;
$$;
-- The times of a record, in seconds from its call's start (or its claim).
CREATE FUNCTION pg_temp.times(key text, OUT call integer, OUT lease integer, OUT dedup integer, OUT expires boolean, OUT yielded boolean, OUT tries integer)
LANGUAGE SQL AS $$
	SELECT extract(epoch FROM r.call_deadline - start)::int, extract(epoch FROM r.lease_expires_at - start)::int,
		   extract(epoch FROM r.dedup_until - start)::int, r.expires_at IS NOT NULL, r.yielded, r.tries
	  FROM idem.idempotency AS r, coalesce(r.call_started_at, r.claimed_at) AS start WHERE r.principal_id = 'owner' AND r.idempotency_key = key;
$$;
-- What a statement that is refused says.
\set ask '\\g (format=unaligned tuples_only=on)'

--
-- 1. idem_before_call
--

-- the call starts now and none leaves after the deadline; the lease ends
-- idem.call_margin later, and a record whose call may have been made never expires
SELECT attempt FROM idem_try_insert('owner', 'call', sha256('one'), lease => '2 s') \gset
SELECT * FROM pg_temp.times('call');
SELECT idem_before_call('owner', 'call', :attempt, '100 s', '1 h') AS deadline \gset
SELECT :'deadline' = call_deadline AS told, call_started_at > claimed_at AS starts_now, call_xid > claim_xid AS in_this_transaction, attempt = :attempt AS same_attempt, state
  FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'call';
SELECT * FROM pg_temp.times('call');
-- a second call: the far side still counts from the first
SELECT pg_temp.age('owner', 'call', '10 min') \g /dev/null
SELECT dedup_until, call_started_at FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'call' \gset
SELECT idem_before_call('owner', 'call', :attempt, '100 s', '5 h') - clock_timestamp() BETWEEN '99 s' AND '100 s' AS deadline;
SELECT dedup_until = :'dedup_until' AS dedup_same, call_started_at > :'call_started_at' AS call_anew FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'call';
-- a longer lease stays
SELECT attempt FROM idem_try_insert('owner', 'call, long lease', sha256('one'), lease => '1000 s') \gset
SELECT idem_before_call('owner', 'call, long lease', :attempt, '100 s') IS NOT NULL AS marked;
SELECT call, lease, dedup, expires FROM pg_temp.times('call, long lease');
SET idem.call_margin = '20 s';
SELECT attempt FROM idem_try_insert('owner', 'call, margin', sha256('one'), lease => '2 s') \gset
SELECT idem_before_call('owner', 'call, margin', :attempt, '100 s') IS NOT NULL AS marked;
RESET idem.call_margin;
SELECT call, lease FROM pg_temp.times('call, margin');
-- the lease is over, and nobody took the record over: without a call it is renewed
SELECT attempt FROM idem_try_insert('owner', 'call, late', sha256('one')) \gset
SELECT pg_temp.age('owner', 'call, late', '1 h') \g /dev/null
SELECT idem_before_call('owner', 'call, late', :attempt, '100 s') IS NOT NULL AS marked;
SELECT outcome FROM idem_try_insert('owner', 'call, late', sha256('one'));
-- so is one whose call the far side would not do twice
SELECT attempt FROM idem_try_insert('owner', 'call, late, dedup', sha256('one'), call_timeout => '10 s', dedup_window => '2 h') \gset
SELECT pg_temp.age('owner', 'call, late, dedup', '1 h') \g /dev/null
SELECT idem_before_call('owner', 'call, late, dedup', :attempt, '100 s') IS NOT NULL AS marked;
-- unless the call would end when the far side has forgotten the key
SELECT pg_temp.refused(format('SELECT idem_before_call(''owner'', ''call, late, dedup'', %s, ''61 min'')', :attempt)) :ask
SELECT idem_before_call('owner', 'call, late, dedup', :attempt, '59 min') IS NOT NULL AS marked;
-- a call that can't be repeated: the owner, whose lease is alive, knows what it called
SELECT attempt FROM idem_try_insert('owner', 'call, again', sha256('one'), call_timeout => '10 s') \gset
SELECT idem_before_call('owner', 'call, again', :attempt, '10 s') IS NOT NULL AS marked;
SELECT pg_temp.age('owner', 'call, again', '1 h') \g /dev/null
SELECT pg_temp.refused(format('SELECT idem_before_call(''owner'', ''call, again'', %s, ''10 s'')', :attempt)) :ask
-- nor may an attempt whose lease is over call when as many have ended as may
SET idem.max_tries = 1;
SELECT attempt FROM idem_try_insert('owner', 'call, last try', sha256('one')) \gset
SELECT idem_before_call('owner', 'call, last try', :attempt, '10 s', '2 h') IS NOT NULL AS marked;
SELECT pg_temp.age('owner', 'call, last try', '1 h') \g /dev/null
SELECT pg_temp.refused(format('SELECT idem_before_call(''owner'', ''call, last try'', %s, ''10 s'')', :attempt)) :ask
SELECT left(pg_temp.refused(format('SELECT idem_yield(''owner'', ''call, last try'', %s)', :attempt)), 5);
RESET idem.max_tries;
SELECT idem_before_call('owner', 'call, last try', :attempt, '10 s') IS NOT NULL AS marked;
-- the mark and the completion are two transactions
BEGIN;
SELECT attempt FROM idem_try_insert('owner', 'call, spanned', sha256('one')) \gset
SELECT idem_before_call('owner', 'call, spanned', :attempt, '10 s') IS NOT NULL AS marked;
SELECT pg_temp.refused(format('SELECT idem_complete(''owner'', ''call, spanned'', %s, 201, ''{}'')', :attempt)) :ask
COMMIT;
SELECT changed FROM idem_complete('owner', 'call, spanned', :attempt, 201, '{}');
-- rolled back, it was not marked
SELECT attempt FROM idem_try_insert('owner', 'call, rolled back', sha256('one')) \gset
BEGIN;
SELECT idem_before_call('owner', 'call, rolled back', :attempt, '10 s') IS NOT NULL AS marked;
ROLLBACK;
SELECT call_started_at FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'call, rolled back';
SELECT changed FROM idem_complete('owner', 'call, rolled back', :attempt, 201, '{}');
-- a fenced owner may not call
SELECT attempt AS first FROM idem_try_insert('owner', 'call, fenced', sha256('one')) \gset
SELECT pg_temp.age('owner', 'call, fenced', '1 h') \g /dev/null
SELECT outcome, attempt AS second FROM idem_try_insert('owner', 'call, fenced', sha256('one')) \gset
SELECT pg_temp.refused(format('SELECT idem_before_call(''owner'', ''call, fenced'', %s, ''10 s'')', :first)) :ask
SELECT call_started_at FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'call, fenced';
SELECT idem_before_call('owner', 'call, fenced', :second, '10 s') IS NOT NULL AS marked;

--
-- 2. idem_mark_unknown
--
SELECT attempt FROM idem_try_insert('owner', 'unknown', sha256('one'), 'pay', call_timeout => '10 s', context => '{"order": 8812}') \gset
\x
SELECT status, headers, convert_from(body, 'UTF8') AS body, changed FROM idem_mark_unknown('owner', 'unknown', :attempt, 'no answer within 10 s', 'acq-77');
\x
SELECT state, attempt = :attempt AS same_attempt, tries, unknown_reason, external_ref, unknown_at IS NOT NULL AS unknown_at, expires_at, completed_at, context
  FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'unknown';
-- the client hears the same, and nothing runs again
SELECT outcome, run, changed, retry_after, expires_at, status, convert_from(body, 'UTF8') ~ '"operation_uncertain"' AS uncertain FROM idem_try_insert('owner', 'unknown', sha256('one'));
-- the longer it takes, the longer the pause, up to a minute
SELECT pg_temp.age('owner', 'unknown', '19.5 s') \g /dev/null
SELECT retry_after, headers FROM idem_try_insert('owner', 'unknown', sha256('one'));
SELECT pg_temp.age('owner', 'unknown', '10 years') \g /dev/null
SELECT outcome, changed, retry_after, expires_at FROM idem_try_insert('owner', 'unknown', sha256('one'));
-- a repeat changes nothing
SELECT status, changed FROM idem_mark_unknown('owner', 'unknown', :attempt, 'another reason', 'acq-78', 504);
SELECT unknown_reason, external_ref, response_status, tries FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'unknown';
-- an interim answer of one's own
SELECT attempt FROM idem_try_insert('owner', 'unknown, 504', sha256('one'), call_timeout => '10 s') \gset
SELECT status, convert_from(body, 'UTF8')::jsonb ->> 'status' AS in_body, changed FROM idem_mark_unknown('owner', 'unknown, 504', :attempt, status => 504);
SELECT outcome, status, convert_from(body, 'UTF8')::jsonb ->> 'status' AS in_body FROM idem_try_insert('owner', 'unknown, 504', sha256('one'));
SELECT unknown_reason, external_ref FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'unknown, 504';
-- what an attempt may no longer do; and what it may, for a late answer
SELECT pg_temp.refused(format('SELECT idem_before_call(''owner'', ''unknown, 504'', %s, ''10 s'')', :attempt)) :ask
SELECT pg_temp.refused(format('SELECT idem_yield(''owner'', ''unknown, 504'', %s)', :attempt)) :ask
SELECT pg_temp.refused(format('SELECT idem_complete(''owner'', ''unknown, 504'', %s, 201, ''{}'')', :attempt - 1)) :ask
SELECT status, changed FROM idem_complete('owner', 'unknown, 504', :attempt, 201, '{"late": true}');
SELECT outcome, status, convert_from(body, 'UTF8') AS body FROM idem_try_insert('owner', 'unknown, 504', sha256('one'));
SELECT verdict, unknown_at IS NOT NULL AS unknown_at FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'unknown, 504';
SELECT pg_temp.refused(format('SELECT idem_mark_unknown(''owner'', ''unknown, 504'', %s)', :attempt)) :ask
-- without a call, and when the lease is over: it is the attempt's word that counts
SELECT attempt FROM idem_try_insert('owner', 'unknown, no call', sha256('one')) \gset
SELECT pg_temp.age('owner', 'unknown, no call', '1 h') \g /dev/null
SELECT changed FROM idem_mark_unknown('owner', 'unknown, no call', :attempt);
SELECT outcome, changed FROM idem_try_insert('owner', 'unknown, no call', sha256('one'));
-- a claim made it UNKNOWN: the attempt's word comes too late to change anything
SELECT attempt FROM idem_try_insert('owner', 'unknown, by a claim', sha256('one'), call_timeout => '10 s') \gset
SELECT pg_temp.age('owner', 'unknown, by a claim', '1 h') \g /dev/null
SELECT outcome, changed FROM idem_try_insert('owner', 'unknown, by a claim', sha256('one'));
SELECT changed FROM idem_mark_unknown('owner', 'unknown, by a claim', :attempt, 'late');
SELECT unknown_reason FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'unknown, by a claim';
SELECT pg_temp.refused(format('SELECT idem_mark_unknown(''owner'', ''call, fenced'', %s)', :first)) :ask

--
-- 3. idem_yield
--

-- nothing was done: the next claim resumes at once, and no try is counted
SELECT attempt, resource_id FROM idem_try_insert('owner', 'yield', sha256('one'), context => '{"order": 8812}') \gset
\x
SELECT status, headers, convert_from(body, 'UTF8') AS body, changed FROM idem_yield('owner', 'yield', :attempt);
\x
SELECT status, changed FROM idem_yield('owner', 'yield', :attempt);
SELECT state, yielded, lease_expires_at <= clock_timestamp() AS over FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'yield';
SELECT outcome, attempt > :attempt AS later_attempt, resource_id = :'resource_id' AS same_resource, context FROM idem_try_insert('owner', 'yield', sha256('one'));
SELECT yielded, tries FROM pg_temp.times('yield');
SELECT pg_temp.refused(format('SELECT idem_yield(''owner'', ''yield'', %s)', :attempt)) :ask
-- in the transaction that yielded, too
BEGIN;
SELECT attempt FROM idem_try_insert('owner', 'yield, at once', sha256('one')) \gset
SELECT changed FROM idem_yield('owner', 'yield, at once', :attempt);
SELECT outcome, attempt > :attempt AS later_attempt FROM idem_try_insert('owner', 'yield, at once', sha256('one'));
COMMIT;
-- so it never becomes UNKNOWN for that
SET idem.max_tries = 1;
\set try_and_yield 'SELECT outcome, attempt FROM idem_try_insert(\'owner\', \'yield, often\', sha256(\'one\')) \\gset \\\\ SELECT :\'outcome\' AS outcome, changed FROM idem_yield(\'owner\', \'yield, often\', :attempt);'
:try_and_yield
:try_and_yield
:try_and_yield
SELECT yielded, tries FROM pg_temp.times('yield, often');
-- an attempt that ended without does count
SELECT outcome FROM idem_try_insert('owner', 'yield, often', sha256('one'));
SELECT pg_temp.age('owner', 'yield, often', '1 h') \g /dev/null
SELECT outcome, changed FROM idem_try_insert('owner', 'yield, often', sha256('one'));
RESET idem.max_tries;
-- the call had no answer, and the far side honours the key
SELECT attempt FROM idem_try_insert('owner', 'yield, dedup', sha256('one'), call_timeout => '10 s', dedup_window => '1 h') \gset
SELECT status, changed FROM idem_yield('owner', 'yield, dedup', :attempt);
SELECT status, changed FROM idem_yield('owner', 'yield, dedup', :attempt);
SELECT outcome, call_deadline IS NOT NULL AS marked FROM idem_try_insert('owner', 'yield, dedup', sha256('one'), call_timeout => '10 s', dedup_window => '1 h');
-- it does not: the mark stays, so the next claim hears UNKNOWN
SELECT attempt FROM idem_try_insert('owner', 'yield, no dedup', sha256('one'), call_timeout => '10 s') \gset
SELECT status, changed FROM idem_yield('owner', 'yield, no dedup', :attempt);
SELECT pg_temp.refused(format('SELECT idem_yield(''owner'', ''yield, no dedup'', %s)', :attempt)) :ask
SELECT outcome, changed FROM idem_try_insert('owner', 'yield, no dedup', sha256('one'));
-- the lease was over already
SELECT attempt FROM idem_try_insert('owner', 'yield, late', sha256('one')) \gset
SELECT pg_temp.age('owner', 'yield, late', '1 h') \g /dev/null
SELECT changed FROM idem_yield('owner', 'yield, late', :attempt);
SELECT yielded FROM pg_temp.times('yield, late');
-- who gave up and goes on after all owns the record, if nobody took it
SELECT attempt FROM idem_try_insert('owner', 'yield, and on', sha256('one')) \gset
SELECT changed FROM idem_yield('owner', 'yield, and on', :attempt);
SELECT idem_before_call('owner', 'yield, and on', :attempt, '10 s') IS NOT NULL AS marked;
SELECT yielded FROM pg_temp.times('yield, and on');
SELECT outcome FROM idem_try_insert('owner', 'yield, and on', sha256('one'));
SELECT changed FROM idem_complete('owner', 'yield, and on', :attempt, 201, '{}');
SELECT pg_temp.refused(format('SELECT idem_yield(''owner'', ''yield, and on'', %s)', :attempt)) :ask
SELECT pg_temp.refused(format('SELECT idem_before_call(''owner'', ''yield, and on'', %s, ''10 s'')', :attempt)) :ask

--
-- 4. Nobody to ask: a record that is not there, or has expired
--
SELECT pg_temp.refused('SELECT idem_before_call(''owner'', ''never claimed'', 1, ''10 s'')') :ask
SELECT pg_temp.refused('SELECT idem_mark_unknown(''owner'', ''never claimed'', 1)') :ask
SELECT pg_temp.refused('SELECT idem_yield(''owner'', ''never claimed'', 1)') :ask
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''never claimed'', ''completed'', ''{}'', 201, ''{}'')') :ask
SELECT attempt FROM idem_try_insert('owner', 'expired', sha256('one')) \gset
SELECT pg_temp.age('owner', 'expired', '1 year') \g /dev/null
SELECT left(pg_temp.refused(format('SELECT idem_before_call(''owner'', ''expired'', %s, ''10 s'')', :attempt)), 5),
	   left(pg_temp.refused(format('SELECT idem_mark_unknown(''owner'', ''expired'', %s)', :attempt)), 5),
	   left(pg_temp.refused(format('SELECT idem_yield(''owner'', ''expired'', %s)', :attempt)), 5),
	   left(pg_temp.refused('SELECT idem_resolve(''owner'', ''expired'', ''completed'', ''{}'', 201, ''{}'')'), 5);

--
-- 5. idem_resolve
--
DELETE FROM idem.idempotency WHERE principal_id = 'owner';

-- the view: UNKNOWN and overdue, oldest first
SELECT attempt AS paid FROM idem_try_insert('owner', 'paid', sha256('one'), 'pay', call_timeout => '10 s', context => '{"order": 1}') \gset
SELECT attempt AS declined FROM idem_try_insert('owner', 'declined', sha256('one'), 'pay', call_timeout => '10 s', dedup_window => '1 h', context => '{"order": 2}') \gset
SELECT outcome FROM idem_try_insert('owner', 'overdue', sha256('one'), 'refund', context => '{"order": 3}');
SELECT outcome FROM idem_try_insert('owner', 'alive', sha256('one'), 'refund');
SELECT changed FROM idem_mark_unknown('owner', 'declined', :declined, 'no answer', 'acq-2');
SELECT pg_temp.age('owner', 'declined', '3 h'), pg_temp.age('owner', 'paid', '2 h'), pg_temp.age('owner', 'overdue', '1 h') \g /dev/null
SELECT outcome, changed FROM idem_try_insert('owner', 'paid', sha256('one'));
SELECT pg_temp.age('owner', 'paid', '2 h') \g /dev/null
SELECT idempotency_key AS key, operation, state, attempt IN (:paid, :declined) AS attempt, tries, resource_id IS NOT NULL AS resource, since < clock_timestamp() AS since,
	   date_trunc('hour', age) AS age, call_started_at IS NOT NULL AS started, call_deadline IS NOT NULL AS deadline, dedup_until IS NOT NULL AS dedup, external_ref, context
  FROM idem.unresolved WHERE principal_id = 'owner';
SELECT idempotency_key AS key, unknown_reason FROM idem.unresolved WHERE principal_id = 'owner';

-- refused: in progress, alive or not; too early after the call's deadline
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''overdue'', ''completed'', ''{}'', 201, ''{}'')') :ask
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''alive'', ''completed'', ''{}'', 201, ''{}'')') :ask
SELECT attempt FROM idem_try_insert('owner', 'early', sha256('one'), call_timeout => '1000 s') \gset
SELECT changed FROM idem_mark_unknown('owner', 'early', :attempt);
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''early'', ''not_applied'', ''{}'', 402, ''{}'')') :ask
SELECT pg_temp.age('owner', 'early', '1050 s') \g /dev/null
SELECT left(pg_temp.refused('SELECT idem_resolve(''owner'', ''early'', ''not_applied'', ''{}'', 402, ''{}'')'), 5), left(pg_temp.refused('SELECT idem_resolve(''owner'', ''early'', ''completed'', ''{}'', 201, ''{}'')'), 5);
SET idem.call_grace = '2 min';
SELECT pg_temp.age('owner', 'early', '11 s') \g /dev/null
SELECT left(pg_temp.refused('SELECT idem_resolve(''owner'', ''early'', ''not_applied'', ''{}'', 402, ''{}'')'), 5);
RESET idem.call_grace;
SELECT status, changed FROM idem_resolve('owner', 'early', 'not_applied', '{}', 402, '{}');
-- without a call there is nothing to wait for
SELECT attempt FROM idem_try_insert('owner', 'no call', sha256('one')) \gset
SELECT changed FROM idem_mark_unknown('owner', 'no call', :attempt);
SELECT changed FROM idem_resolve('owner', 'no call', 'not_applied', '{"seen": "nothing"}', 409, '{}');

-- settled, with the event that the live path would have written, in one transaction
CREATE TEMP TABLE paid (attempt bigint);
BEGIN;
SELECT status, headers, convert_from(body, 'UTF8') AS body, changed
  FROM idem_resolve('owner', 'paid', 'completed', '{"statement": "2026-11", "line": 14}', 201, '{"paid": true}'::jsonb, '[["content-type", "application/json"], ["location", "/payments/1"]]');
INSERT INTO paid VALUES (:paid);
SELECT outbox_emit('owner', 'order-1', 'payment.completed', '{"order": 1}', once_key => 'owner/paid') IS NOT NULL AS emitted;
ROLLBACK;
SELECT pg_temp.state('paid'), (SELECT count(*) FROM idem.resolution WHERE idempotency_key = 'paid') AS history, (SELECT count(*) FROM paid) AS rows,
	   (SELECT count(*) FROM idem.outbox WHERE topic = 'owner') AS events;
BEGIN;
SELECT status, headers, convert_from(body, 'UTF8') AS body, changed
  FROM idem_resolve('owner', 'paid', 'completed', '{"statement": "2026-11", "line": 14}', 201, '{"paid": true}'::jsonb, '[["content-type", "application/json"], ["location", "/payments/1"]]');
INSERT INTO paid VALUES (:paid);
SELECT outbox_emit('owner', 'order-1', 'payment.completed', '{"order": 1}', once_key => 'owner/paid') IS NOT NULL AS emitted;
COMMIT;
SELECT pg_temp.state('paid'), (SELECT count(*) FROM paid) AS rows, (SELECT count(*) FROM idem.outbox WHERE topic = 'owner') AS events;
SELECT state, verdict, response_status, convert_from(response_body, 'UTF8') AS body, tries, expires_at IS NOT NULL AS expires, extract(epoch FROM response_expires_at - completed_at)::int AS response
  FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'paid';
-- the client's retry gets it
SELECT outcome, status, headers, convert_from(body, 'UTF8') AS body FROM idem_try_insert('owner', 'paid', sha256('one'));
-- the same verdict again changes nothing, and gives what is stored
SELECT status, headers, convert_from(body, 'UTF8') AS body, changed FROM idem_resolve('owner', 'paid', 'completed', '{"again": true}', 500, '{"other": true}');
-- the other verdict is an error, and so is an answer of the attempt that comes now
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''paid'', ''not_applied'', ''{}'', 402, ''{}'')') :ask
SELECT pg_temp.refused(format('SELECT idem_complete(''owner'', ''paid'', %s, 201, ''{"paid": true}''::jsonb, ''[["content-type", "application/json"], ["location", "/payments/1"]]'')', :paid)) :ask
SELECT pg_temp.refused(format('SELECT idem_mark_unknown(''owner'', ''paid'', %s)', :paid)) :ask
-- not applied: it ends in COMPLETED as well, and the key never runs again
SELECT status, convert_from(body, 'UTF8') AS body, changed FROM idem_resolve('owner', 'declined', 'not_applied', '{"file": "settlement-7", "found": false}', 402, '{"declined": true}'::text);
SELECT outcome, run, status, convert_from(body, 'UTF8') AS body FROM idem_try_insert('owner', 'declined', sha256('one'), call_timeout => '10 s');
SELECT state, verdict FROM idem.idempotency WHERE principal_id = 'owner' AND idempotency_key = 'declined';
-- completed on the live path: nothing to settle
SELECT attempt FROM idem_try_insert('owner', 'live', sha256('one')) \gset
SELECT changed FROM idem_complete('owner', 'live', :attempt, 201, '{}');
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''live'', ''completed'', ''{}'', 201, ''{}'')') :ask
-- a late answer came first: nothing to settle
SELECT attempt FROM idem_try_insert('owner', 'late', sha256('one'), call_timeout => '10 s') \gset
SELECT changed FROM idem_mark_unknown('owner', 'late', :attempt);
SELECT pg_temp.age('owner', 'late', '1 h') \g /dev/null
SELECT changed FROM idem_complete('owner', 'late', :attempt, 201, '{}');
SELECT left(pg_temp.refused('SELECT idem_resolve(''owner'', ''late'', ''completed'', ''{}'', 201, ''{}'')'), 5);
-- the response is gone
SELECT pg_temp.age('owner', 'declined', '4 days') \g /dev/null
UPDATE idem.idempotency SET expires_at = clock_timestamp() + interval '1 day' WHERE principal_id = 'owner' AND idempotency_key = 'declined';
SELECT outcome FROM idem_try_insert('owner', 'declined', sha256('one'));
SELECT pg_temp.refused('SELECT idem_resolve(''owner'', ''declined'', ''not_applied'', ''{}'', 402, ''{}'')') :ask
-- a body as bytes, and one over the limit
SELECT attempt FROM idem_try_insert('owner', 'bytes', sha256('one')) \gset
SELECT changed FROM idem_mark_unknown('owner', 'bytes', :attempt);
SET idem.max_response_bytes = 4;
SELECT status, body, changed FROM idem_resolve('owner', 'bytes', 'completed', '{}', 200, '\x00fffe0d0a'::bytea, '[]');
RESET idem.max_response_bytes;
SELECT outcome, status, body, body_kept FROM idem_try_insert('owner', 'bytes', sha256('one'));
SELECT status, body, changed FROM idem_resolve('owner', 'bytes', 'completed', '{}', 200, '\x00fffe0d0a'::bytea, '[]');
-- the history: a row for each verdict, and none for what was refused or repeated
SELECT idempotency_key AS key, verdict, evidence, response_status AS status, resolved_by = session_user AS by_me, resolved_at <= clock_timestamp() AS at, attempt IN (:paid, :declined) AS attempt
  FROM idem.resolution WHERE principal_id = 'owner' ORDER BY resolution_id;
-- nobody but a superuser or its owner can change it
SELECT grantee, privilege_type FROM information_schema.table_privileges WHERE table_schema = 'idem' AND table_name = 'resolution' AND grantee <> session_user;
SELECT idempotency_key AS key FROM idem.unresolved WHERE principal_id = 'owner';

--
-- 6. Bad input: refused with a hint, and nothing is written
--
SELECT attempt FROM idem_try_insert('owner', 'bad', sha256('one')) \gset
CREATE TEMP TABLE before AS SELECT * FROM idem.idempotency WHERE principal_id = 'owner';
CREATE TEMP TABLE history_before AS SELECT count(*) FROM idem.resolution;
\pset format unaligned
\pset tuples_only on
-- principal and key, of every function
SELECT what || ', ' || function || ': ' || left(error, 5) || CASE WHEN error ~ E'\n    hint: ' OR error LIKE '22021%' THEN '' ELSE ' WITHOUT A HINT' END
  FROM (VALUES
	(1, 'no principal', 'NULL, ''bad'''),
	(2, 'no key', '''owner'', NULL'),
	(3, 'empty principal', ''''', ''bad'''),
	(4, 'empty key', '''owner'', '''''),
	(5, 'principal of 256 characters', 'repeat(''p'', 256), ''bad'''),
	(6, 'key of 256 characters', '''owner'', repeat(''k'', 256)'),
	(7, 'key of 4,000 bytes that do not compress', '''owner'', (SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n)'),
	(8, 'line feed in the key', '''owner'', E''bad\n'''),
	(9, 'U+0085 in the principal', 'U&''owner\0085'', ''bad'''),
	(10, 'not UTF-8', '''owner'', E''\xff''')) AS t(n, what, arguments),
	(VALUES (1, 'idem_before_call', ', $, ''10 s'''), (2, 'idem_mark_unknown', ', $'), (3, 'idem_yield', ', $'), (4, 'idem_resolve', ', ''completed'', ''{}'', 201, ''{}''')) AS f(m, function, rest),
	LATERAL (SELECT pg_temp.refused(format('SELECT %s(%s%s)', function, arguments, replace(rest, '$', :'attempt'))) AS error) AS e
 ORDER BY n, m;
-- the other arguments
SELECT what || E'\n  ' || pg_temp.refused(replace(statement, '$', '''owner'', ''bad'', ' || :'attempt'))
  FROM (VALUES
	(1, 'before_call: no attempt', 'SELECT idem_before_call(''owner'', ''bad'', NULL, ''10 s'')'),
	(2, 'before_call: no timeout', 'SELECT idem_before_call($, NULL)'),
	(3, 'before_call: no time', 'SELECT idem_before_call($, ''0'')'),
	(4, 'before_call: negative time', 'SELECT idem_before_call($, ''-1 s'')'),
	(5, 'before_call: endless', 'SELECT idem_before_call($, ''178000000 years'')'),
	(6, 'before_call: negative window', 'SELECT idem_before_call($, ''1 s'', ''-1 s'')'),
	(7, 'before_call: endless window', 'SELECT idem_before_call($, ''1 s'', ''178000000 years'')'),
	(8, 'before_call: a time that is none', 'SELECT idem_before_call($, ''soon'')'),
	(9, 'mark_unknown: no attempt', 'SELECT idem_mark_unknown(''owner'', ''bad'', NULL)'),
	(10, 'mark_unknown: no status', 'SELECT idem_mark_unknown($, status => NULL)'),
	(11, 'mark_unknown: status 99', 'SELECT idem_mark_unknown($, status => 99)'),
	(12, 'mark_unknown: status 600', 'SELECT idem_mark_unknown($, status => 600)'),
	(13, 'yield: no attempt', 'SELECT idem_yield(''owner'', ''bad'', NULL)'),
	(14, 'resolve: no verdict', 'SELECT idem_resolve(''owner'', ''bad'', NULL, ''{}'', 201, ''{}'')'),
	(15, 'resolve: unknown verdict', 'SELECT idem_resolve(''owner'', ''bad'', ''maybe'', ''{}'', 201, ''{}'')'),
	(16, 'resolve: verdict in capitals', 'SELECT idem_resolve(''owner'', ''bad'', ''COMPLETED'', ''{}'', 201, ''{}'')'),
	(17, 'resolve: empty verdict', 'SELECT idem_resolve(''owner'', ''bad'', '''', ''{}'', 201, ''{}'')'),
	(18, 'resolve: no evidence', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', NULL, 201, ''{}'')'),
	(19, 'resolve: evidence that is no JSON', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''statement 7'', 201, ''{}'')'),
	(20, 'resolve: no status', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', NULL, ''{}'')'),
	(21, 'resolve: status 99', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', 99, ''{}'')'),
	(22, 'resolve: no body, bytea', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', 201, NULL::bytea)'),
	(23, 'resolve: no body, text', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', 201, NULL::text)'),
	(24, 'resolve: no headers', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', 201, ''{}'', NULL)'),
	(25, 'resolve: headers as an object', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', 201, ''{}'', ''{"a": "b"}'')'),
	(26, 'resolve: header with a line feed', 'SELECT idem_resolve(''owner'', ''bad'', ''completed'', ''{}'', 201, ''{}'', ''[["a", "b\nc"]]'')')) AS t(n, what, statement)
 ORDER BY n;
\pset tuples_only off
\pset format aligned
SELECT count(*) AS changed FROM before JOIN idem.idempotency AS after USING (principal_id, idempotency_key) WHERE before::text <> after::text;
SELECT (SELECT count(*) FROM idem.idempotency WHERE principal_id = 'owner') - (SELECT count(*) FROM before) AS added, (SELECT count(*) FROM idem.resolution) - count AS history FROM history_before;
-- a read-only transaction
BEGIN READ ONLY;
SELECT left(pg_temp.refused(format('SELECT idem_before_call(''owner'', ''bad'', %s, ''10 s'')', :attempt)), 5),
	   left(pg_temp.refused(format('SELECT idem_mark_unknown(''owner'', ''bad'', %s)', :attempt)), 5),
	   left(pg_temp.refused(format('SELECT idem_yield(''owner'', ''bad'', %s)', :attempt)), 5),
	   left(pg_temp.refused('SELECT idem_resolve(''owner'', ''paid'', ''completed'', ''{}'', 201, ''{}'')'), 5);
COMMIT;

DELETE FROM idem.idempotency WHERE principal_id = 'owner';
DELETE FROM idem.resolution WHERE principal_id = 'owner';
DELETE FROM idem.outbox WHERE topic = 'owner';
DELETE FROM idem.outbox_once WHERE once_key = 'owner/paid';
