--
-- Keys at the edge: idem_key(header), idem_step_key(saga, step, generation),
-- idem_http_problem(code)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused

--
-- 1. idem_key: bare, or a string of structured fields
--
SELECT header, '<' || idem_key(header) || '>' AS key
  FROM unnest(ARRAY['abc', '"abc"', ' abc ', E'\t"abc"\t', '"a b"', 'a b', '"a\"b"', '"a\\b"', '"\\"', '"\""', 'a"b', 'a\b', 'abc"', '" abc "', '8e03978e-40d5-43dd-bc93-6894a57f9324',
	'"8e03978e-40d5-43dd-bc93-6894a57f9324"', '''abc''', '?1', ':YWJj:', 'a;b=c', 'a,b', '"a;b,c"', 'a', '"a"', U&'\00e9']) WITH ORDINALITY AS t(header, n) ORDER BY n;
-- bare and quoted are one key
SELECT idem_key('abc') = idem_key('"abc"') AS one_key, idem_key(NULL) IS NULL AS null;
SELECT length(idem_key(repeat('k', 255))) AS bare, length(idem_key('"' || repeat('k', 255) || '"')) AS quoted, length(idem_key('"' || repeat('\\', 255) || '"')) AS escaped, length(idem_key(repeat(' ', 10000) || 'k')) AS spaces;
\pset format unaligned
\pset tuples_only on
SELECT what || E'\n  ' || pg_temp.refused(format('SELECT idem_key(%s)', argument))
  FROM (VALUES
	(1, 'empty', ''''''),
	(2, 'spaces', '''   '''),
	(3, 'an empty string', '''""'''),
	(4, 'a string that does not end', '''"abc'''),
	(5, 'a quote alone', '''"'''),
	(6, 'its end is escaped', '''"abc\"'''),
	(7, 'an escape at the end', '''"abc\'''),
	(8, 'another escape', '''"a\nb"'''),
	(9, 'a quote inside', '''"a"b"'''),
	(10, 'something behind it', '''"abc"d'''),
	(11, 'a parameter behind it', '''"abc";d=1'''),
	(12, 'two strings', '''"abc", "def"'''),
	(13, '256 characters', 'repeat(''k'', 256)'),
	(14, '256 characters in quotes', '''"'' || repeat(''k'', 256) || ''"'''),
	(15, 'a control character', 'E''a\x01b'''),
	(16, 'a line feed in quotes', 'E''"a\nb"'''),
	(17, 'delete', 'E''a\x7f'''),
	(18, 'U+0085', 'U&''a\0085'''),
	(19, 'line feed at the end', 'E''abc\n'''),
	(20, 'not UTF-8', 'E''\xff'''),
	(21, 'not ASCII, in quotes', 'U&''"\00e9"'''),
	(22, '4,000 bytes that do not compress', '(SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 125) AS n)')) AS t(n, what, argument)
 ORDER BY n;
\pset tuples_only off
\pset format aligned

--
-- 2. idem_step_key: the same for every retry, another for anything else
--
SELECT idem_step_key('order-8812', 'charge') AS key;
SELECT idem_step_key('order-8812', 'charge') = encode(digest('["order-8812","charge",1]', 'sha256'), 'hex') AS as_described,
	   idem_step_key('order-8812', 'charge') = idem_step_key('order-8812', 'charge', 1) AS first_generation,
	   idem_step_key('order-8812', 'charge') ~ '^[0-9a-f]{64}$' AS hexadecimal;
-- the parts do not run into each other
SELECT count(DISTINCT idem_step_key(saga, step, generation)) AS keys, count(*)
  FROM (VALUES ('a', 'b', 1), ('a', 'b', 2), ('ab', '', 1), ('', 'ab', 1), ('a","b', '', 1), ('a', '","b', 1), ('b', 'a', 1), ('a', 'b,1', 1), ('a', 'b', 11), ('a', 'b', -1), ('A', 'b', 1), ('a ', 'b', 1), (U&'\00e9', 'b', 1), (U&'e\0301', 'b', 1)) AS t(saga, step, generation);
SELECT idem_step_key(NULL, 'b'), idem_step_key('a', NULL), idem_step_key('a', 'b', NULL);
-- it is one key that a claim takes, whatever the names are
SELECT outcome FROM idem_try_insert('key', idem_step_key(repeat('saga', 1000), E'step\n'), sha256('one'));
DELETE FROM idem.idempotency WHERE principal_id = 'key';

--
-- 3. idem_http_problem
--
\x
SELECT code, status, headers, convert_from(body, 'UTF8') AS body, changed
  FROM unnest(ARRAY['idempotency_key_missing', 'idempotency_key_malformed', 'idempotency_key_reused', 'operation_in_progress', 'operation_uncertain', 'operation_result_expired']) WITH ORDINALITY AS t(code, n),
	   LATERAL idem_http_problem(code) ORDER BY n;
\x
-- what every one of them is: a problem document whose members agree with its status and code
SELECT count(*) AS wrong
  FROM unnest(ARRAY['idempotency_key_missing', 'idempotency_key_malformed', 'idempotency_key_reused', 'operation_in_progress', 'operation_uncertain', 'operation_result_expired']) AS code,
	   LATERAL idem_http_problem(code) AS p, LATERAL (SELECT convert_from(p.body, 'UTF8')::jsonb AS doc) AS d
 WHERE (doc ->> 'status')::int <> p.status OR doc ->> 'code' <> code OR doc ->> 'type' <> 'urn:idem:problem:' || code OR doc ->> 'title' IS NULL OR doc ->> 'detail' IS NULL
	OR NOT p.headers @> '[["content-type", "application/problem+json"]]' OR p.changed;
-- the status of a mismatch is a setting, for the claim's own answer too
SET idem.mismatch_status = 422;
SELECT status, convert_from(body, 'UTF8')::jsonb ->> 'status' AS in_body FROM idem_http_problem('idempotency_key_reused');
SELECT status FROM idem_http_problem('operation_in_progress');
SELECT outcome FROM idem_try_insert('key', 'mismatch', sha256('one'));
SELECT outcome, status, convert_from(body, 'UTF8')::jsonb ->> 'status' AS in_body, body = (idem_http_problem('idempotency_key_reused')).body AS same FROM idem_try_insert('key', 'mismatch', sha256('two'));
RESET idem.mismatch_status;
SELECT outcome, status FROM idem_try_insert('key', 'mismatch', sha256('two'));
DELETE FROM idem.idempotency WHERE principal_id = 'key';
-- a code that is none
SELECT pg_temp.refused(format('SELECT idem_http_problem(%s)', code)) FROM unnest(ARRAY['NULL', '''''', '''IDEMPOTENCY_KEY_MISSING''', '''not_found''', '''idempotency_key_missing ''']) AS code \g (format=unaligned tuples_only=on)
BEGIN READ ONLY;
SELECT status FROM idem_http_problem('idempotency_key_missing');
COMMIT;
