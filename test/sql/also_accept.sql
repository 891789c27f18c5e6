--
-- A definition of the request hash, or its secret, that changed since the claim:
-- idem_try_insert(also_accept)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
\set age :source '/sql/include/age.sql'
\i :age

-- The claim of a release that knows the new definition and the old ones.
\set new '\'also\', key, sha256(\'new\'), call_timeout => \'10 s\''
\set both :new ', also_accept => ARRAY[sha256(\'older\'), sha256(\'old\')]'

SET idem.record_retention = '5 d';
SELECT key, (idem_try_insert('also', key, sha256('old'), call_timeout => call)).outcome
  FROM (VALUES ('alive', NULL::interval), ('over', NULL), ('called', '10 s'), ('unknown', NULL), ('completed', NULL), ('gone', NULL), ('expired', NULL)) AS t(key, call);
SELECT idempotency_key AS key, CASE idempotency_key WHEN 'unknown' THEN (idem_mark_unknown('also', idempotency_key, attempt)).changed ELSE (idem_complete('also', idempotency_key, attempt, 201, '{}')).changed END AS done
  FROM idem.idempotency WHERE principal_id = 'also' AND idempotency_key IN ('unknown', 'completed', 'gone', 'expired') ORDER BY 1;
SELECT pg_temp.age('also', 'over', '1 h'), pg_temp.age('also', 'called', '1 h'), pg_temp.age('also', 'gone', '4 days'), pg_temp.age('also', 'expired', '6 days') \g /dev/null
RESET idem.record_retention;

-- without it, every record of the old definition is a mismatch
BEGIN;
SELECT key, outcome FROM unnest(ARRAY['alive', 'over', 'called', 'unknown', 'completed', 'gone', 'expired', 'new']) WITH ORDINALITY AS t(key, n), LATERAL idem_try_insert(:new) ORDER BY n;
ROLLBACK;
-- with it, each is what it is
SELECT key, outcome, changed FROM unnest(ARRAY['alive', 'over', 'called', 'unknown', 'completed', 'gone', 'expired', 'new']) WITH ORDINALITY AS t(key, n), LATERAL idem_try_insert(:both) ORDER BY n;
-- a take-over keeps the record's hash, so that a release that goes back still knows it; a new record has the new one
SELECT idempotency_key AS key, CASE request_hash WHEN sha256('old') THEN 'old' WHEN sha256('new') THEN 'new' END AS hash FROM idem.idempotency WHERE principal_id = 'also' ORDER BY 1;
SELECT key, outcome FROM unnest(ARRAY['over', 'completed']) AS key, LATERAL idem_try_insert('also', key, sha256('old'));
-- the other way round, during a rollout: the old release meets records of the new one
SELECT outcome FROM idem_try_insert('also', 'new', sha256('old'));
SELECT outcome FROM idem_try_insert('also', 'new', sha256('old'), also_accept => ARRAY[sha256('new')]);
-- another request stays another request
SELECT outcome FROM idem_try_insert('also', 'completed', sha256('other'), also_accept => ARRAY[sha256('another'), sha256('new')]);
-- it changes nothing about which hash is stored
SELECT outcome FROM idem_try_insert('also', 'stored', sha256('new'), also_accept => ARRAY[sha256('old')]);
SELECT request_hash = sha256('new') AS new FROM idem.idempotency WHERE principal_id = 'also' AND idempotency_key = 'stored';
-- hashes of other lengths, many, none, NULL
SELECT outcome FROM idem_try_insert('also', 'short', '\x00000000000000000000000000000000');
SELECT outcome FROM idem_try_insert('also', 'short', sha512('new'), also_accept => ARRAY['\x00000000000000000000000000000000'::bytea]);
SELECT outcome FROM idem_try_insert('also', 'completed', sha256('new'), also_accept => ARRAY(SELECT sha256(n::text::bytea) FROM generate_series(1, 500) AS n) || sha256('old'));
SELECT outcome FROM idem_try_insert('also', 'completed', sha256('old'), also_accept => '{}');
SELECT outcome FROM idem_try_insert('also', 'completed', sha256('old'), also_accept => NULL);

-- bad input
CREATE TEMP TABLE count_before AS SELECT count(*) FROM idem.idempotency;
SELECT pg_temp.refused(format('SELECT idem_try_insert(''also'', ''bad'', sha256(''one''), also_accept => %s)', hashes))
  FROM unnest(ARRAY['ARRAY[NULL::bytea]', 'ARRAY[sha256(''old''), NULL]', 'ARRAY[''''::bytea]', 'ARRAY[decode(repeat(''00'', 15), ''hex'')]', 'ARRAY[sha256(''old''), decode(repeat(''00'', 65), ''hex'')]', '''{abc''']) AS hashes \g (format=unaligned tuples_only=on)
SELECT count(*) - (SELECT count FROM count_before) AS written FROM idem.idempotency;

DELETE FROM idem.idempotency WHERE principal_id = 'also';
