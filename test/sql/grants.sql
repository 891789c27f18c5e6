--
-- Rights of roles: idem_grant(kind, role), and what each kind can and cannot do
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
DROP ROLE IF EXISTS regress_idem_application, regress_idem_consumer, regress_idem_operator, "regress idem ""odd""";
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
\set age :source '/sql/include/age.sql'
\i :age
CREATE ROLE regress_idem_application;
CREATE ROLE regress_idem_consumer;
CREATE ROLE regress_idem_operator;
CREATE ROLE "regress idem ""odd""";

-- What a role may call, of all functions of the extension.
CREATE VIEW pg_temp.callable AS
	SELECT r.rolname AS role, p.proname AS function
	  FROM pg_roles AS r, pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		   JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idem'
	 WHERE r.rolname ~ '^regress.idem' AND has_function_privilege(r.oid, p.oid, 'EXECUTE');
CREATE VIEW pg_temp.usable AS
	SELECT r.rolname AS role, c.relname AS relation, p.privilege
	  FROM pg_roles AS r, pg_class AS c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p(privilege)
	 WHERE r.rolname ~ '^regress.idem' AND c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege(r.oid, c.oid, p.privilege);

-- nothing to begin with
SELECT count(*) AS functions, (SELECT count(*) FROM pg_temp.usable) AS relations, has_schema_privilege('regress_idem_application', 'idem', 'USAGE') AS schema FROM pg_temp.callable;

SELECT idem_grant('application', 'regress_idem_application');
SELECT idem_grant('consumer', 'regress_idem_consumer');
SELECT idem_grant('operator', 'regress_idem_operator');
SELECT role, string_agg(DISTINCT function, ' ' ORDER BY function) AS functions FROM pg_temp.callable GROUP BY 1 ORDER BY 1 \g (format=unaligned tuples_only=on)
SELECT role, privilege, string_agg(relation, ' ' ORDER BY relation) AS relations FROM pg_temp.usable GROUP BY 1, 2 ORDER BY 1, 2;
-- all three forms of what has three
SELECT role, function, count(*) FROM pg_temp.callable GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY 1, 2;
-- twice is once; a name that needs quotes; several kinds for one role
SELECT idem_grant('application', 'regress_idem_application');
SELECT idem_grant('consumer', '"regress idem ""odd"""'), idem_grant('operator', '"regress idem ""odd"""');
SELECT string_agg(DISTINCT function, ' ' ORDER BY function) AS functions FROM pg_temp.callable WHERE role = 'regress idem "odd"';
-- the right to give rights on is not given
SELECT count(*) AS grantable FROM information_schema.role_routine_grants WHERE grantee ~ '^regress.idem' AND is_grantable = 'YES';

--
-- 1. application: a record's whole life, and events
--
SET ROLE regress_idem_application;
SELECT outcome, attempt FROM idem_try_insert('grants', 'one', idem_hash('{"amount": 100}'), 'pay', call_timeout => '10 s', dedup_window => '1 h') \gset
SELECT idem_before_call('grants', 'one', :attempt, '10 s') IS NOT NULL AS marked;
BEGIN;
SELECT changed FROM idem_complete('grants', 'one', :attempt, 201, '{"paid": true}');
SELECT outbox_emit('grants', 'order-1', 'paid', '{"order": 1}', once_key => 'grants/1') IS NOT NULL AS emitted;
INSERT INTO idem.outbox (topic, partition_key, payload, headers) VALUES ('grants', 'order-1', '{"order": 1}', '[["a", "b"]]');
COMMIT;
SELECT outcome, status, convert_from(body, 'UTF8') AS body FROM idem_try_insert('grants', 'one', idem_hash('{"amount": 100}'));
SELECT outcome FROM idem_try_insert('grants', 'one', idem_hash('{"amount": 101}'));
SELECT ord, outcome, attempt IS NOT NULL AS attempt FROM idem_try_insert_many('grants', '{one,two,three}', ARRAY[idem_hash('{"amount": 100}'), idem_hash('2'), idem_hash('3')], 'pay', lease => '1 us');
SELECT attempt AS two, idempotency_key AS key FROM idem_claim_stale('pay') \gset
SELECT changed, status FROM idem_yield('grants', :'key', :two);
SELECT changed, status FROM idem_mark_unknown('grants', :'key', :two, 'no answer');
SELECT outcome FROM idem_lookup('grants', :'key');
SELECT status FROM idem_http_problem('idempotency_key_missing');
SELECT idem_key('"k"'), length(idem_step_key('saga', 'step')) AS step_key, idem_canonical('{"b": 1.0, "a": []}'), idem_uuid7() IS NOT NULL AS uuid7;
-- and nothing else: not a table, not the operator's and the consumer's part
\set denied 'SELECT pg_temp.refused(s) FROM unnest(ARRAY'
:denied[
	'SELECT * FROM idem.idempotency', 'UPDATE idem.idempotency SET attempt = 1', 'DELETE FROM idem.idempotency', 'INSERT INTO idem.idempotency (principal_id) VALUES (''p'')',
	'SELECT * FROM idem.resolution', 'SELECT * FROM idem.unresolved', 'SELECT * FROM idem.outbox', 'SELECT * FROM idem.outbox_once', 'SELECT * FROM idem.inbox', 'SELECT * FROM idem.relay_status', 'SELECT * FROM idem.topic', 'INSERT INTO idem.topic (topic) VALUES (''t'')', 'TRUNCATE idem.topic',
	'UPDATE idem.outbox SET published_at = now()', 'DELETE FROM idem.outbox', 'INSERT INTO idem.outbox_07 (topic, slot) VALUES (''t'', 7)', 'TRUNCATE idem.idempotency',
	'SELECT nextval(''idem.attempt'')', 'SELECT setval(''idem.outbox_seq'', 1)',
	'SELECT idem_resolve(''grants'', ''two'', ''completed'', ''{}'', 201, ''{}'')', 'SELECT idem_sweep()', 'SELECT inbox_apply(''c'', idem_uuid7())', 'SELECT idem_relay_sweep()', 'SELECT idem_grant(''operator'', ''regress_idem_application'')']) AS s \g (format=unaligned tuples_only=on)
RESET ROLE;

--
-- 2. consumer
--
SET ROLE regress_idem_consumer;
SELECT inbox_apply('grants', '919108f7-52d1-4320-9bac-f847db4148a8'), inbox_apply('grants', '919108f7-52d1-4320-9bac-f847db4148a8');
:denied[
	'SELECT * FROM idem.inbox', 'DELETE FROM idem.inbox', 'SELECT * FROM idem.idempotency', 'SELECT idem_try_insert(''p'', ''k'', sha256(''one''))', 'SELECT idem_complete(''p'', ''k'', 1, 201, ''{}'')',
	'SELECT outbox_emit(''t'', ''k'', ''e'', ''{}'')', 'INSERT INTO idem.outbox (topic) VALUES (''t'')', 'SELECT idem_lookup(''p'', ''k'')', 'SELECT idem_sweep()', 'SELECT idem_grant(''operator'', ''regress_idem_consumer'')']) AS s \g (format=unaligned tuples_only=on)
RESET ROLE;

--
-- 3. operator: sees everything, settles, sweeps; makes no claims for clients
--
UPDATE idem.idempotency SET call_deadline = call_deadline - interval '1 h', call_started_at = call_started_at - interval '1 h' WHERE principal_id = 'grants';
SET ROLE regress_idem_operator;
SELECT idempotency_key = :'key' AS key, state FROM idem.unresolved WHERE state = 'UNKNOWN';
SELECT status, changed FROM idem_resolve('grants', :'key', 'not_applied', '{"asked": "acquirer"}', 402, '{}'::text);
SELECT status, changed FROM idem_resolve('grants', :'key', 'not_applied', '{"asked": "acquirer"}', 402, '{}'::bytea);
SELECT verdict, resolved_by = session_user AS who_logged_in FROM idem.resolution WHERE principal_id = 'grants';
SELECT outcome FROM idem_lookup('grants', :'key');
SELECT outcome FROM idem_claim_stale('pay');
SELECT records FROM idem_sweep();
SELECT idem_relay_sweep();
SELECT state FROM idem.relay_status;
SELECT count(*) FROM idem.idempotency WHERE principal_id = 'grants';
SELECT count(*) FROM idem.outbox WHERE topic = 'grants';
SELECT count(*) FROM idem.outbox_once WHERE once_key = 'grants/1';
SELECT count(*) FROM idem.inbox WHERE consumer = 'grants';
INSERT INTO idem.topic (topic, on_failure) VALUES ('grants', 'skip');
UPDATE idem.topic SET timestamp_type = 'send' WHERE topic = 'grants';
DELETE FROM idem.topic WHERE topic = 'grants' RETURNING *;
:denied[
	'UPDATE idem.idempotency SET attempt = 1', 'DELETE FROM idem.idempotency', 'UPDATE idem.resolution SET verdict = ''completed''', 'DELETE FROM idem.resolution', 'INSERT INTO idem.resolution (principal_id) VALUES (''p'')',
	'DELETE FROM idem.outbox', 'DELETE FROM idem.inbox', 'SELECT idem_try_insert(''p'', ''k'', sha256(''one''))', 'SELECT idem_complete(''p'', ''k'', 1, 201, ''{}'')', 'SELECT idem_before_call(''p'', ''k'', 1, ''1 s'')', 'SELECT idem_mark_unknown(''p'', ''k'', 1)',
	'SELECT idem_yield(''p'', ''k'', 1)', 'SELECT outbox_emit(''t'', ''k'', ''e'', ''{}'')', 'SELECT inbox_apply(''c'', ''919108f7-52d1-4320-9bac-f847db4148a8'')', 'SELECT idem_grant(''application'', ''regress_idem_operator'')']) AS s \g (format=unaligned tuples_only=on)
RESET ROLE;

--
-- 4. idem_grant: bad input, and taking it back
--
SELECT pg_temp.refused(format('SELECT idem_grant(%s)', arguments)) FROM unnest(ARRAY['NULL, ''regress_idem_operator''', '''operator'', NULL', '''admin'', ''regress_idem_operator''', ''''', ''regress_idem_operator''', '''Operator'', ''regress_idem_operator''',
	'''operator'', ''regress_idem_nobody''', '''operator'', ''regress_idem_operator; DROP TABLE idem.idempotency''']) AS arguments \g (format=unaligned tuples_only=on)
DROP OWNED BY regress_idem_application, regress_idem_consumer, regress_idem_operator, "regress idem ""odd""";
SELECT count(*) AS functions, (SELECT count(*) FROM pg_temp.usable) AS relations FROM pg_temp.callable;
DROP ROLE regress_idem_application, regress_idem_consumer, regress_idem_operator, "regress idem ""odd""";

DELETE FROM idem.idempotency WHERE principal_id = 'grants';
DELETE FROM idem.resolution WHERE principal_id = 'grants';
DELETE FROM idem.outbox WHERE topic = 'grants';
DELETE FROM idem.outbox_once WHERE once_key = 'grants/1';
DELETE FROM idem.inbox WHERE consumer = 'grants';
