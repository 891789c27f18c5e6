--
-- Keyed hashes: idem_request_hmac(key_id, ...) and the keys
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
DROP ROLE IF EXISTS regress_idem_application, regress_idem_operator, regress_idem_reader;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
TRUNCATE idem.hash_key;

SELECT p.oid::regprocedure AS function, provolatile, prosecdef, proparallel
  FROM pg_proc AS p WHERE proname IN ('idem_request_hmac', 'hash_hmac') OR proname LIKE 'idem\_hash\_key%' ORDER BY 1::text;

--
-- 1. HMAC-SHA-256: RFC 4231, section 4, and pgcrypto
--
INSERT INTO idem.hash_key VALUES
	('1', decode(repeat('0b', 20), 'hex'), now()), ('2', 'Jefe', now()), ('3', decode(repeat('aa', 20), 'hex'), now()),
	('4', '\x0102030405060708090a0b0c0d0e0f10111213141516171819', now()), ('5', decode(repeat('0c', 20), 'hex'), now()),
	('6', decode(repeat('aa', 131), 'hex'), now()), ('7', decode(repeat('aa', 131), 'hex'), now());
SELECT key_id, encode(idem.hash_hmac(key_id, message), 'hex') AS hmac, substr(idem.hash_hmac(key_id, message), 1, length(expected)) = expected AS right,
	   idem.hash_hmac(key_id, message) = hmac(message, secret, 'sha256') AS as_pgcrypto
  FROM (VALUES
	('1', 'Hi There'::bytea, '\xb0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7'::bytea),
	('2', 'what do ya want for nothing?', '\x5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843'),
	('3', decode(repeat('dd', 50), 'hex'), '\x773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe'),
	('4', decode(repeat('cd', 50), 'hex'), '\x82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b'),
	('5', 'Test With Truncation', '\xa3b6167473100ee06e0c796c2955552b'),
	('6', 'Test Using Larger Than Block-Size Key - Hash Key First', '\x60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54'),
	('7', 'This is a test using a larger than block-size key and a larger than block-size data. The key needs to be hashed before being used by the HMAC algorithm.', '\x9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2')) AS t(key_id, message, expected)
  JOIN idem.hash_key USING (key_id) ORDER BY 1;
SELECT idem.hash_hmac('1', '') = hmac('', decode(repeat('0b', 20), 'hex'), 'sha256') AS empty, idem.hash_hmac('1', NULL) IS NULL AS of_null;

--
-- 2. Over the hash of the request
--
TRUNCATE idem.hash_key;
SELECT idem_hash_key_add('one'), idem_hash_key_add('two');
SELECT key_id, length(secret), created_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS now FROM idem.hash_key ORDER BY 1;
SELECT count(DISTINCT secret) AS secrets FROM idem.hash_key;
SELECT bool_and(idem_request_hmac(key_id, 'POST', '/p', '{"n": 1.0}') = hmac(idem_request_hash('POST', '/p', '{"n": 1.0}'), secret, 'sha256')) AS text,
	   bool_and(idem_request_hmac(key_id, 'POST', '/p', '{"n": 1.0}'::jsonb) = hmac(idem_request_hash('POST', '/p', '{"n": 1.0}'), secret, 'sha256')) AS jsonb,
	   bool_and(idem_request_hmac(key_id, 'GET', '/p') = hmac(idem_request_hash('GET', '/p'), secret, 'sha256')) AS no_body,
	   bool_and(idem_request_hmac(key_id, 'POST', '/p', '{"n": 1, "m": 2, "o": 3}', '{n,m,x}', '{m}', '{x}', 'jcs') = hmac(idem_request_hash('POST', '/p', '{"n": 1, "m": 2, "o": 3}', '{n,m,x}', '{m}', '{x}', 'jcs'), secret, 'sha256')) AS all_arguments,
	   bool_and(idem_request_hmac(mode => 'jcs', path => '/p', key_id => key_id, method => 'POST', exclude => '{m}', body => '{"n": 1, "m": 2}'::jsonb) = hmac(idem_request_hash('POST', '/p', '{"n": 1, "m": 2}', exclude => '{m}', mode => 'jcs'), secret, 'sha256')) AS by_name,
	   count(DISTINCT idem_request_hmac(key_id, 'POST', '/p', '{"n": 1.0}')) AS hashes
  FROM idem.hash_key;
-- in a read-only transaction, a parallel worker, a prepared statement
BEGIN READ ONLY;
SELECT length(idem_request_hmac('one', 'POST', '/p', '{}'));
COMMIT;
SELECT set_config(name, 'on', false) AS parallel_mode FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT idem_request_hmac('one', 'POST', '/p', body) = hmac(idem_request_hash('POST', '/p', body), secret, 'sha256') AS parallel FROM idem.hash_key, (VALUES ('{}')) AS b(body) WHERE key_id = 'one';
SELECT set_config(name, 'off', false) AS parallel_mode FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
PREPARE by_key(text) AS SELECT idem_request_hmac($1, 'POST', '/p', '{}') = (SELECT hmac(idem_request_hash('POST', '/p', '{}'), secret, 'sha256') FROM idem.hash_key WHERE key_id = $1) AS prepared;
EXECUTE by_key('one');
EXECUTE by_key('two');
EXPLAIN (VERBOSE, COSTS OFF) EXECUTE by_key('one');

--
-- 3. Rotation: a claim made with one key is a replay under the other
--
SELECT attempt FROM idem_try_insert('hash_key', 'k', idem_request_hmac('one', 'POST', '/p', '{"card": 1}')) \gset
SELECT changed FROM idem_complete('hash_key', 'k', :attempt, 201, '{}'::text);
SELECT outcome FROM idem_try_insert('hash_key', 'k', idem_request_hmac('one', 'POST', '/p', '{"card": 1}'), also_accept => ARRAY[idem_request_hmac('two', 'POST', '/p', '{"card": 1}')]);
SELECT outcome FROM idem_try_insert('hash_key', 'k', idem_request_hmac('two', 'POST', '/p', '{"card": 1}'), also_accept => ARRAY[idem_request_hmac('one', 'POST', '/p', '{"card": 1}')]);
SELECT outcome FROM idem_try_insert('hash_key', 'k', idem_request_hmac('two', 'POST', '/p', '{"card": 2}'), also_accept => ARRAY[idem_request_hmac('one', 'POST', '/p', '{"card": 2}')]);
SELECT outcome FROM idem_try_insert('hash_key', 'k', idem_request_hmac('two', 'POST', '/p', '{"card": 1}'));
SELECT idem_hash_key_retire('one');
SELECT key_id FROM idem.hash_keys;
SELECT pg_temp.refused($$SELECT idem_request_hmac('one', 'POST', '/p', '{"card": 1}')$$) \g (format=unaligned tuples_only=on)
SELECT outcome FROM idem_try_insert('hash_key', 'new', idem_request_hmac('two', 'POST', '/p', '{"card": 1}'));
-- a key of a transaction that rolled back, and of one that goes on
BEGIN;
SELECT idem_hash_key_add('three');
SELECT length(idem_request_hmac('three', 'POST', '/p', '{}'));
SELECT idem_hash_key_retire('three');
SELECT idem_hash_key_add('three');
ROLLBACK;
SELECT pg_temp.refused($$SELECT idem_request_hmac('three', 'POST', '/p', '{}')$$) \g (format=unaligned tuples_only=on)

--
-- 4. Given secrets
--
SELECT idem_hash_key_import('given', sha256('given'));
SELECT idem_request_hmac('given', 'POST', '/p', '{}') = hmac(idem_request_hash('POST', '/p', '{}'), sha256('given'), 'sha256') AS given;
SELECT idem_hash_key_import('long', decode(repeat('5a', 1024), 'hex'));
SELECT idem_request_hmac('long', 'POST', '/p', '{}') = hmac(idem_request_hash('POST', '/p', '{}'), decode(repeat('5a', 1024), 'hex'), 'sha256') AS long;

--
-- 5. Refused
--
SELECT pg_temp.refused('SELECT ' || call)
  FROM unnest(ARRAY[
	'idem_request_hmac(NULL, ''POST'', ''/p'')', 'idem_request_hmac('''', ''POST'', ''/p'')', 'idem_request_hmac(''no such'', ''POST'', ''/p'')', 'idem_request_hmac(''two'', NULL, ''/p'')',
	'idem_request_hmac(''two'', ''POST'', ''/p'', ''{"a": 1, "a": 2}'')', 'idem_request_hmac(''two'', ''POST'', ''/p'', ''{"a": 1}'', ''{b}'')', 'idem.hash_hmac(NULL, NULL)', 'idem.hash_hmac(''Two'', '''')',
	'idem_hash_key_add(NULL)', 'idem_hash_key_add('''')', 'idem_hash_key_add(''two'')', 'idem_hash_key_add(repeat(''x'', 256))', 'idem_hash_key_add(E''a\nb'')',
	'idem_hash_key_import(NULL, sha256(''x''))', 'idem_hash_key_import(''x'', NULL)', 'idem_hash_key_import(''x'', decode(repeat(''5a'', 31), ''hex''))', 'idem_hash_key_import(''x'', decode(repeat(''5a'', 1025), ''hex''))', 'idem_hash_key_import(''two'', sha256(''x''))',
	'idem_hash_key_retire(NULL)', 'idem_hash_key_retire(''no such'')']) AS call \g (format=unaligned tuples_only=on)
BEGIN READ ONLY;
SELECT pg_temp.refused('SELECT ' || call) FROM unnest(ARRAY['idem_hash_key_add(''x'')', 'idem_hash_key_import(''x'', sha256(''x''))', 'idem_hash_key_retire(''two'')']) AS call \g (format=unaligned tuples_only=on)
COMMIT;
SELECT key_id FROM idem.hash_keys ORDER BY 1;

--
-- 6. Who may what: nobody sees a secret, whatever may be read otherwise
--
CREATE ROLE regress_idem_application;
CREATE ROLE regress_idem_operator;
CREATE ROLE regress_idem_reader;
SELECT idem_grant('application', 'regress_idem_application'), idem_grant('operator', 'regress_idem_operator');
GRANT pg_read_all_data, pg_write_all_data, pg_monitor TO regress_idem_reader;
ANALYZE idem.hash_key;
SELECT stanullfrac, stavalues1 FROM pg_statistic WHERE starelid = 'idem.hash_key'::regclass AND staattnum = (SELECT attnum FROM pg_attribute WHERE attrelid = 'idem.hash_key'::regclass AND attname = 'secret');
SET ROLE regress_idem_application;
SELECT length(idem_request_hmac('two', 'POST', '/p', '{}'));
SELECT pg_temp.refused(statement) FROM unnest(ARRAY['SELECT FROM idem.hash_key', 'SELECT FROM idem.hash_keys', 'SELECT idem_hash_key_add(''x'')', 'SELECT idem_hash_key_import(''x'', sha256(''x''))', 'SELECT idem_hash_key_retire(''two'')']) AS statement \g (format=unaligned tuples_only=on)
SET ROLE regress_idem_operator;
SELECT idem_hash_key_add('operator');
SELECT key_id, created_at IS NOT NULL AS created FROM idem.hash_keys ORDER BY 1;
SELECT idem_hash_key_retire('operator');
SELECT pg_temp.refused(statement) FROM unnest(ARRAY['SELECT FROM idem.hash_key', 'SELECT idem_request_hmac(''two'', ''POST'', ''/p'', ''{}'')', 'SELECT idem.hash_hmac(''two'', '''')', 'SELECT idem_hash_key_import(''x'', sha256(''x''))', 'DELETE FROM idem.hash_key', 'TRUNCATE idem.hash_key']) AS statement \g (format=unaligned tuples_only=on)
SET ROLE regress_idem_reader;
SELECT count(*) AS rows FROM idem.hash_key;
SELECT count(*) AS statistics FROM pg_stats WHERE tablename = 'hash_key';
SELECT pg_temp.refused(statement) FROM unnest(ARRAY['INSERT INTO idem.hash_key VALUES (''x'', ''x'', now())', 'SELECT idem_hash_key_add(''x'')', 'SELECT idem_request_hmac(''two'', ''POST'', ''/p'')']) AS statement \g (format=unaligned tuples_only=on)
UPDATE idem.hash_key SET secret = '';
DELETE FROM idem.hash_key;
RESET ROLE;
SELECT count(*) FROM idem.hash_key WHERE length(secret) >= 32;

DROP OWNED BY regress_idem_application, regress_idem_operator, regress_idem_reader;
DROP ROLE regress_idem_application, regress_idem_operator, regress_idem_reader;
TRUNCATE idem.hash_key;
DELETE FROM idem.idempotency WHERE principal_id = 'hash_key';
