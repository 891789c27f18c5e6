--
-- The hash of a request: idem_request_hash(method, path, body, ...)
--
-- The rules of a selection are tried case by case in test/t/031_request_hash.pl.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused
CREATE SCHEMA request_test;
SET search_path = request_test, public;

SELECT p.oid::regprocedure AS function, provolatile, proisstrict, proparallel
  FROM pg_proc AS p WHERE proname = 'idem_request_hash' ORDER BY 1::text;

--
-- 1. What is hashed: pgcrypto's digest of the array, written by hand
--
CREATE FUNCTION of(frame text) RETURNS bytea LANGUAGE sql AS $$ SELECT public.digest(convert_to(frame, 'UTF8'), 'sha256') $$;
SELECT idem_request_hash('GET', '/') = of('["idem.request",1,"exact","GET","/",null,null]') AS no_body,
	   idem_request_hash('POST', '/p', 'null') = of('["idem.request",1,"exact","POST","/p",null,null,null]') AS json_null,
	   idem_request_hash('POST', '/p', '{"b": [2.50], "a": "é"}') = of('["idem.request",1,"exact","POST","/p",null,null,{"a":"é","b":[2.5]}]') AS body,
	   idem_request_hash('POST', '/p', '{"b": [2.50], "a": "é"}'::jsonb) = of('["idem.request",1,"exact","POST","/p",null,null,{"a":"é","b":[2.5]}]') AS body_jsonb,
	   idem_request_hash('POST', '/p', '{"b": 1e2, "a": 1}', mode => 'jcs') = of('["idem.request",1,"jcs","POST","/p",null,null,{"a":1,"b":100}]') AS jcs,
	   idem_request_hash('PO"ST', E'/p\n\\', '1') = of('["idem.request",1,"exact","PO\"ST","/p\n\\",null,null,1]') AS escapes,
	   idem_request_hash('', '', '1') = of('["idem.request",1,"exact","","",null,null,1]') AS empty;
-- lists: sorted by UTF-16 code units, without repeats
SELECT idem_request_hash('POST', '/p', '{"b": 1, "a": 2, "c": 3}', '{b,/c,a,b,/c}') = of('["idem.request",1,"exact","POST","/p",["/c","a","b"],null,{"a":2,"b":1,"c":3}]') AS include,
	   idem_request_hash('POST', '/p', '{"b": 1, "a": 2, "c": 3}', exclude => '{x,/c,b,x}') = of('["idem.request",1,"exact","POST","/p",null,["/c","b","x"],{"a":2}]') AS exclude,
	   idem_request_hash('POST', '/p', '{"a": 1}', exclude => '{}') = of('["idem.request",1,"exact","POST","/p",null,[],{"a":1}]') AS empty_exclude,
	   idem_request_hash('POST', '/p', NULL, exclude => '{/a}') = of('["idem.request",1,"exact","POST","/p",null,["/a"]]') AS exclude_without_body,
	   idem_request_hash('POST', '/p', '{"a": 1}', U&'{\FB33,\+01F602,"",a}', optional => U&'{\FB33,\+01F602}')
		 = of(U&'["idem.request",1,"exact","POST","/p",["","a","\+01F602","\FB33"],null,{"a":1}]') AS utf16;
-- optional is not in it
SELECT idem_request_hash('POST', '/p', '{"a": 1, "b": 2}', '{a,b}', optional => '{b}') = idem_request_hash('POST', '/p', '{"a": 1, "b": 2}', '{a,b}') AS optional;

--
-- 2. One request, one hash, however it is written and given; another one, another
--
SELECT count(DISTINCT idem_request_hash('POST', '/p', body)) AS hashes, count(DISTINCT idem_request_hash('POST', '/p', body::jsonb)) AS of_jsonb,
	   bool_and(idem_request_hash('POST', '/p', body) = idem_request_hash('POST', '/p', body::jsonb)) AS agree,
	   bool_and(idem_request_hash('POST', '/p', body, '{/n,/i/*/s}', '{/x}') = idem_request_hash('POST', '/p', body::jsonb, '{/i/*/s,/n}', '{/x}')) AS selected_agree
  FROM (VALUES ('{"n": 1, "i": [{"s": "\u0041"}]}'), ('{"i":[{"s":"A"}],"n":1.0}'), (E' {\t"n" : 10e-1, "\\u0069" : [ {"s" : "A"} ] }\n')) AS t(body);
SELECT idem_request_hash(body => '{"a": 1}', path => '/p', method => 'POST') = idem_request_hash('POST', '/p', '{"a": 1}'::text) AS named,
	   idem_request_hash(path => '/p', method => 'POST') = idem_request_hash('POST', '/p', NULL::jsonb) AS without_body;
-- many ways to be another request
SELECT count(*), count(DISTINCT idem_request_hash(method, path, body, include, exclude, optional, mode))
  FROM unnest(ARRAY['POST', 'post', 'POST ', '', 'null']) AS m(method), unnest(ARRAY['/p', '/p/', '/P', 'null']) AS p(path), unnest(ARRAY['exact', 'jcs']) AS x(mode),
	   (VALUES (NULL, NULL::text[], NULL::text[], NULL::text[]), ('null', NULL, NULL, NULL), ('"null"', NULL, NULL, NULL), ('[]', NULL, NULL, NULL), ('{}', NULL, NULL, NULL), ('[null]', NULL, NULL, NULL), ('[[]]', NULL, NULL, NULL),
			   ('{"a": 1}', NULL, NULL, NULL), ('{"a": 1}', '{a}', NULL, NULL), ('{"a": 1}', '{/a}', NULL, NULL), ('{"a": 1}', '{""}', NULL, NULL), ('{"a": 1}', '{a,/a}', NULL, NULL),
			   ('{"a": 1}', NULL, '{}', NULL), ('{"a": 1}', NULL, '{b}', NULL), ('{"a": 1}', '{a}', '{}', NULL), ('{"a": 1}', '{a}', '{b}', NULL), ('{"a": 1}', '{a,b}', NULL, '{b}'), ('{"a": 1}', '{"a,b",a}', NULL, '{"a,b"}'),
			   ('{"a": 1}', NULL, '{"a,b"}', NULL), ('{"a": 1}', NULL, '{"a\",\"b"}', NULL), ('{"a": 1}', NULL, '{"null"}', NULL)) AS b(body, include, exclude, optional);

--
-- 3. In an index, a generated column, a parallel plan
--
CREATE TABLE request (
	method text, path text, body text, value jsonb,
	hash bytea GENERATED ALWAYS AS (idem_request_hash(method, path, body, exclude => '{/trace}')) STORED);
CREATE UNIQUE INDEX request_hash ON request (idem_request_hash(method, path, value, exclude => '{/trace}'));
INSERT INTO request (method, path, body, value)
	SELECT 'POST', '/p', b, b::jsonb FROM (SELECT format('{"n": %s, "trace": %s}', n, random()) FROM generate_series(1, 500) AS n) AS t(b);
INSERT INTO request (method, path, body, value) VALUES ('POST', '/p', '{"n": 7.0}', '{"n": 7.0}') ON CONFLICT DO NOTHING;
SELECT count(*), count(DISTINCT hash), bool_and(hash = idem_request_hash(method, path, value, NULL, '{/trace}')) FROM request;
ALTER TABLE request SET (parallel_workers = 2);
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT count(DISTINCT idem_request_hash(method, path, body)) FROM request WHERE idem_request_hash(method, path, body, '{n}') <> '';
SELECT count(DISTINCT idem_request_hash(method, path, body, '{n}')) FROM request WHERE idem_request_hash(method, path, body, '{n}') <> '';
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;

--
-- 4. Refused
--
SELECT pg_temp.refused(format('SELECT idem_request_hash(%s)', arguments))
  FROM unnest(ARRAY[
	'NULL, ''/p''', '''POST'', NULL', 'NULL, NULL, ''{}''::jsonb', '''POST'', ''/p'', mode => NULL', '''POST'', ''/p'', mode => ''JCS''',
	'''POST'', ''/p'', ''{"a": 1, "a": 1}''', '''POST'', ''/p'', ''{"a": 1, "\u0061": 1}'', ''{b}''', '''POST'', ''/p'', ''{"a": 1} x'', exclude => ''{b}''',
	'''POST'', ''/p'', ''''', '''POST'', ''/p'', ''{"a": 123456789012345678}'', mode => ''jcs''', '''POST'', ''/p'', ''{"a": 123456789012345678}''::jsonb, mode => ''jcs''',
	'''POST'', ''/p'', ''{"a": 1}'', ''{b}''', '''POST'', ''/p'', ''{"a": 1}'', ''{a,/b/*/c,x}'', optional => ''{x}''', '''POST'', ''/p'', ''{"a": 1}'', ''{}''', '''POST'', ''/p'', ''{"a": 1}'', ''{a}'', ''{a}''', '''POST'', ''/p'', NULL, ''{a}''',
	'''POST'', ''/p'', ''{"a": 1}'', ''{a}'', optional => ''{b}''', '''POST'', ''/p'', ''{"a": 1}'', optional => ''{a}''', '''POST'', ''/p'', optional => ''{a}''',
	'''POST'', ''/p'', ''{"a": 1}'', ''{a,NULL}''', '''POST'', ''/p'', exclude => ''{NULL}''', '''POST'', ''/p'', ''{"a": 1}'', ''{a}'', optional => ''{NULL}''',
	'''POST'', ''/p'', ''{"a": 1}'', ''{/a~}''', '''POST'', ''/p'', exclude => ''{/a/b~2c}''', '''POST'', ''/p'', ''{"a": 1}'', ''{{a},{b}}''']) AS arguments \g (format=unaligned tuples_only=on)
-- what mode jcs refuses may be left out
SELECT idem_request_hash('POST', '/p', '{"a": 123456789012345678, "b": 1}', exclude => '{a}', mode => 'jcs') = of('["idem.request",1,"jcs","POST","/p",null,["a"],{"b":1}]') AS left_out;
-- 1,000 levels of the body, as for idem_hash; more may be cut off, from a jsonb
SELECT idem_request_hash('POST', '/p', repeat('[', 1000) || repeat(']', 1000)) = idem_request_hash('POST', '/p', (repeat('[', 1000) || repeat(']', 1000))::jsonb) AS deep;
SELECT pg_temp.refused($$SELECT idem_request_hash('POST', '/p', repeat('[', 1001) || repeat(']', 1001))$$) \g (format=unaligned tuples_only=on)
SELECT pg_temp.refused($$SELECT idem_request_hash('POST', '/p', (repeat('[', 1001) || repeat(']', 1001))::jsonb)$$) \g (format=unaligned tuples_only=on)
SELECT idem_request_hash('POST', '/p', ('{"a": 1, "b": ' || repeat('[', 1500) || repeat(']', 1500) || '}')::jsonb, '{a}') = of('["idem.request",1,"exact","POST","/p",["a"],null,{"a":1}]') AS cut_off;

SET client_min_messages = warning;
DROP SCHEMA request_test CASCADE;
