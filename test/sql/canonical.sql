--
-- Canonical JSON and its hash: idem_canonical, idem_hash
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
CREATE SCHEMA canonical_test;
SET search_path = canonical_test, public;

-- all may stand in an index, a generated column and a parallel plan
SELECT oid::regprocedure AS function, provolatile, proisstrict, proparallel
  FROM pg_proc
 WHERE proname IN ('idem_canonical', 'idem_hash')
 ORDER BY oid::regprocedure::text;

SELECT idem_canonical(NULL) IS NULL AS canonical_null, idem_hash(NULL) IS NULL AS hash_null;

--
-- 1. Structure and scalars
--
SELECT idem_canonical(body)
  FROM (VALUES
	(1, 'null'::jsonb), (2, 'true'), (3, 'false'), (4, '0'), (5, '-12.50'), (6, '""'),
	(7, '"text"'), (8, '[]'), (9, '{}'), (10, '[[]]'), (11, '[{}]'), (12, '{"":{}}'),
	(13, '[ null , true , [ false , [ ] , { } ] , "" ]'),
	(14, '{ "b" : [ 1 , { "d" : null , "c" : { } } ] , "a" : { "" : "" } }'),
	(15, '[["one"],"one",[["one"]]]')) AS t(n, body)
 ORDER BY n;

-- the hash is that of the text and nothing else
SELECT encode(idem_hash('{}'), 'hex');
SELECT encode(sha256('{}'), 'hex');

-- null is not missing, and a scalar is not an array of it
SELECT count(DISTINCT idem_hash(body))
  FROM (VALUES
	('{}'::jsonb), ('{"a":null}'), ('[]'), ('[null]'), ('null'), ('"null"'), ('""'),
	('[""]'), ('{"":null}'), ('0'), ('"0"'), ('false'), ('[[]]'), ('[{}]')) AS t(body);

--
-- 2. Numbers
--

-- the layout and its boundaries
SELECT spelling, idem_canonical(spelling::jsonb)
  FROM (VALUES
	(1, '0'), (2, '-0'), (3, '-0.0'), (4, '0e10'), (5, '0.000e-30'),
	(6, '1'), (7, '-1'), (8, '10'), (9, '9999'), (10, '10000'), (11, '10001'),
	(12, '100000000'), (13, '1.5'), (14, '-1.50'), (15, '0.5'), (16, '12345.6789'),
	(17, '10000.0001'), (18, '0.00012'), (19, '0.000100005'),
	(20, '1e19'), (21, '1e20'), (22, '1e21'), (23, '1e22'),
	(24, '123456789012345678901'), (25, '999999999999999999999'),
	(26, '1000000000000000000000'), (27, '1234567890123456789012'),
	(28, '123456789012345678901.5'), (29, '1234567890123456789012.5'),
	(30, '-1e21'), (31, '12e20'), (32, '1e-5'), (33, '1e-6'), (34, '1e-7'), (35, '1e-8'),
	(36, '1.5e-6'), (37, '1.5e-7'), (38, '-1.5e-7'), (39, '0.0000015'), (40, '0.00000015'),
	(41, '123e-20'), (42, '1e30'), (43, '1e131071'), (44, '-1.5e131071'), (45, '1e-16383'),
	(46, '-123e-16383'), (47, '333333333.33333329'),
	(48, '3.1415926535897932384626433832795028841971')) AS t(n, spelling)
 ORDER BY n;

-- every power of ten, alone and with a digit before and behind it
SELECT count(*) AS wrong
  FROM generate_series(-60, 60) AS e,
	   LATERAL (SELECT CASE WHEN e BETWEEN 0 AND 20 THEN '1' || repeat('0', e)
							WHEN e BETWEEN -6 AND -1 THEN '0.' || repeat('0', -e - 1) || '1'
							WHEN e > 20 THEN '1e+' || e
							ELSE '1e' || e END AS one,
					   CASE WHEN e BETWEEN 1 AND 20 THEN '12' || repeat('0', e - 1)
							WHEN e = 0 THEN '1.2'
							WHEN e BETWEEN -6 AND -1 THEN '0.' || repeat('0', -e - 1) || '12'
							WHEN e > 20 THEN '1.2e+' || e
							ELSE '1.2e' || e END AS two) AS expected
 WHERE idem_canonical(('1e' || e)::jsonb) <> one
	OR idem_canonical(('0.01e' || e + 2)::jsonb) <> one
	OR idem_canonical(('-1000e' || e - 3)::jsonb) <> '-' || one
	OR idem_canonical(('12e' || e - 1)::jsonb) <> two
	OR idem_canonical(('1.200e' || e)::jsonb) <> two;

-- spellings of one value are one text
SELECT idem_canonical(spelling::jsonb), count(*), count(DISTINCT idem_hash(spelling::jsonb)) AS hashes
  FROM (VALUES
	('1'), ('1.0'), ('1.00'), ('1e0'), ('1E0'), ('1e+0'), ('1e-0'), ('100e-2'), ('0.1e1'),
	('0.01E+2'), ('10.000e-1'), ('1.0e00'),
	('-25.5'), ('-25.50'), ('-255e-1'), ('-0.255E2'), ('-2.55e+1'),
	('0'), ('-0'), ('0.0'), ('-0.0'), ('0e5'), ('0E-5')) AS t(spelling)
 GROUP BY 1 ORDER BY 1;

-- pairs that one double swallows are two texts
SELECT a, b,
	   idem_canonical(a::jsonb) <> idem_canonical(b::jsonb) AS texts_differ,
	   idem_hash(a::jsonb) <> idem_hash(b::jsonb) AS hashes_differ
  FROM (VALUES
	(1, '9007199254740992', '9007199254740993'),
	(2, '9223372036854775807', '9223372036854775808'),
	(3, '18446744073709551615', '18446744073709551616'),
	(4, '70368744177664.01', '70368744177664.02'),
	(5, '8796093022208.001', '8796093022208.002'),
	(6, '549755813888.0002', '549755813888.0003'),
	(7, '8589934592.000001', '8589934592.000002'),
	(8, '67108864.00000001', '67108864.00000002'),
	(9, '0.007812500000000001', '0.007812500000000002'),
	(10, '0.1', '0.1000000000000000055511151231257827'),
	(11, '1e400', '1e500'),
	(12, '1e-400', '0'),
	(13, '1234567890123456789012345678901234567890', '1234567890123456789012345678901234567891'),
	(14, '0.1234567890123456789012345678901234567890', '0.1234567890123456789012345678901234567891')
	) AS t(n, a, b)
 ORDER BY n;

-- a number as text is not a number
SELECT count(DISTINCT idem_hash(body))
  FROM (VALUES ('10.00'::jsonb), ('"10.00"'), ('"10.0"')) AS t(body);

-- long numbers keep every digit: 300 of them, and as many as jsonb takes
SELECT idem_canonical(repeat('1234567890', 30)::jsonb) =
	   '1.' || substr(repeat('1234567890', 30), 2, 298) || 'e+299' AS integer_300,
	   idem_canonical(('0.' || repeat('1234567890', 30))::jsonb) =
	   '0.' || rtrim(repeat('1234567890', 30), '0') AS fraction_300,
	   idem_canonical((repeat('7', 131072) || '.' || repeat('3', 16383))::jsonb) =
	   '7.' || repeat('7', 131071) || repeat('3', 16383) || 'e+131071' AS longest;

-- big exponents cost nothing: written out these would be 1.3 GB
CREATE TABLE big AS
SELECT ('[' || string_agg('1e131071', ',') || ']')::jsonb AS body FROM generate_series(1, 10000);
SELECT idem_canonical(body) = '[' || rtrim(repeat('1e+131071,', 10000), ',') || ']' AS text_is_short,
	   idem_hash(body) = digest(idem_canonical(body), 'sha256') AS hash_is_right
  FROM big;

--
-- 3. Strings
--

-- what is escaped, and how
SELECT string_agg(idem_canonical(to_jsonb(chr(c))), ' ' ORDER BY c) FROM generate_series(1, 34) AS c;
SELECT string_agg(idem_canonical(to_jsonb(chr(c))), ' ' ORDER BY c) FROM generate_series(35, 126) AS c;

-- all else stands for itself, unchanged
SELECT n, idem_canonical(('"' || spelling || '"')::jsonb) = '"' || expected || '"' AS as_expected
  FROM (VALUES
	('solidus', '\/', '/'),
	('DEL', '\u007f', E'\u007f'),
	('C1 control', '\u0080', E'\u0080'),
	('line separator', '\u2028', E'\u2028'),
	('paragraph separator', '\u2029', E'\u2029'),
	('byte-order mark', '\ufeff', E'\ufeff'),
	('noncharacter', '\uffff', E'\uffff'),
	('surrogate pair', '\ud83d\ude02', E'\U0001F602'),
	('last code point', '\udbff\udfff', E'\U0010FFFF'),
	('composed', '\u00c5', E'\u00c5'),
	('not composed', 'A\u030a', E'A\u030a'),
	('upper-case escape', '\u001F\u00E9', E'\\u001f\u00e9'),
	('markup', '</script>', '</script>')) AS t(n, spelling, expected);
SELECT idem_hash('"\u00c5"') <> idem_hash('"A\u030a"') AS not_normalised;

-- strings around the size of the buffers, plain and all escapes
SELECT count(*) AS wrong
  FROM generate_series(1000, 1050) AS n,
	   LATERAL (VALUES (repeat('x', n)), (repeat(E'\u0001', n)), (repeat(E'\u20ac', n)),
					   (repeat('x', n) || E'\n' || repeat('y', n))) AS t(s),
	   LATERAL (SELECT to_jsonb(s) AS body) AS b
 WHERE idem_canonical(body) <> to_json(s)::text
	OR idem_hash(body) <> digest(to_json(s)::text, 'sha256');

--
-- 4. Order of names
--

-- by UTF-16 code units; the values name them in the order they come out
SELECT string_agg(m[1], ' ' ORDER BY n)
  FROM regexp_matches(idem_canonical(
	'{"\ufb33":"U+FB33", "\ud83d\ude02":"U+1F602", "\uffff":"U+FFFF", "\ue000":"U+E000",
	  "\ud800\udc00":"U+10000", "\udbff\udfff":"U+10FFFF", "\ud7ff":"U+D7FF", "\u20ac":"U+20AC",
	  "\u00e9":"U+00E9", "\u007f":"U+007F", "a":"a", "aa":"aa", "b":"b", "A":"A", "":"empty",
	  "1":"1", "10":"10", "2":"2", "a\u0001":"a,U+0001", "\u0001":"U+0001", "\ufb33a":"U+FB33,a",
	  "\ud83d\ude02a":"U+1F602,a", "\ud83d\ude03":"U+1F603", "e\u0301":"e,U+0301"}'),
	':"([^"]*)"', 'g') WITH ORDINALITY AS r(m, n);

-- names that share a long beginning, and a wide object
SELECT idem_canonical(jsonb_build_object(
	repeat('k', 300) || 'b', 1, repeat('k', 300) || 'a', 2, repeat('k', 299), 3)) =
	format('{"%s":3,"%sa":2,"%sb":1}', repeat('k', 299), repeat('k', 300), repeat('k', 300)) AS long_names;
SELECT idem_canonical(jsonb_object_agg('k' || n, n)) =
	   '{' || string_agg(format('"k%s":%s', n, n), ',' ORDER BY ('k' || n) COLLATE "C") || '}' AS wide
  FROM generate_series(1, 20000) AS n;

--
-- 5. Depth
--
CREATE FUNCTION nested(opening text, inner_text text, closing text, levels int) RETURNS jsonb
	LANGUAGE sql IMMUTABLE
	RETURN (repeat(opening, levels) || inner_text || repeat(closing, levels))::jsonb;

SELECT length(idem_canonical(nested('[', '', ']', 1000))) AS arrays,
	   length(idem_canonical(nested('{"a":', '1', '}', 1000))) AS objects,
	   length(idem_canonical(nested('[{"a":', '1', '}]', 500))) AS both;
SELECT idem_hash(nested('[', '1', ']', 1000)) = sha256((repeat('[', 1000) || '1' || repeat(']', 1000))::bytea) AS hash;
SELECT idem_hash(nested('[', '', ']', 1001));
SELECT idem_canonical(nested('{"a":', '1', '}', 1001));
\set VERBOSITY sqlstate
SELECT idem_hash(nested('[{"a":', '[]', '}]', 500));
SELECT idem_hash(nested('[', '', ']', 5000));
\set VERBOSITY default

-- what is wide is not deep
SELECT length(idem_canonical(('[' || rtrim(repeat('[{}],', 5000), ',') || ']')::jsonb)) AS siblings;

--
-- 6. Mode jcs
--

-- what a call does: its text, or how it fails
CREATE FUNCTION canonical_or_error(body text, mode text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN idem_canonical(body, mode);
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;
CREATE FUNCTION jsonb_canonical_or_error(body text, mode text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN idem_canonical(body::jsonb, mode);
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;

SELECT spelling, canonical_or_error(spelling, 'jcs') AS of_text,
	   jsonb_canonical_or_error(spelling, 'jcs') AS of_jsonb
  FROM (VALUES
	(1, '0'), (2, '-0.0'), (3, '1.50'), (4, '49.90'), (5, '123456789012345'), (6, '0.123456789012345'),
	(7, '123456789012345e10'), (8, '1e23'), (9, '1e21'), (10, '1e-7'), (11, '1e300'), (12, '-1e-300'),
	-- integers up to 2^53
	(20, '1234567890123456'), (21, '9007199254740991'), (22, '9007199254740992'), (23, '-9007199254740992'),
	(24, '9007199254740993'), (25, '-9007199254740993'), (26, '9007199254740992.0'), (27, '90071992547409920e-1'),
	(28, '10000000000000000'), (29, '12345678901234567'),
	-- more than 15 digits behind the point
	(30, '0.1234567890123456'), (31, '900719925474099.5'), (32, '333333333.33333329'),
	-- the range of normal doubles
	(40, '1.79769313486231e308'), (41, '1.79769313486232e308'), (42, '1e309'), (43, '2e308'),
	(44, '2.22507385850721e-308'), (45, '2.22507385850720e-308'), (46, '1e-308'), (47, '3e-308'), (48, '5e-324'),
	(49, '-1e131071'),
	(50, repeat('7', 100))) AS t(n, spelling)
 ORDER BY n;
SELECT idem_canonical('{"a":[1152921504606846976]}', 'jcs');
SELECT idem_hash('{"a":[1152921504606846976]}'::jsonb, 'jcs');

-- where it takes a value, the text and the hash are those of mode exact
SELECT body, idem_canonical(body, 'jcs') = idem_canonical(body) AS text_equal,
	   idem_hash(body, 'jcs') = idem_hash(body, 'exact') AS hash_equal
  FROM (VALUES ('{"b":[1.50,"x"],"a":{"c":1e2}}'::jsonb), ('9007199254740992'), ('"12345678901234567890"')) AS t(body);

-- there are no other modes
SELECT idem_canonical('1', 'rfc8785');
SELECT idem_hash('1'::jsonb, '');
\set VERBOSITY sqlstate
SELECT idem_canonical('1'::jsonb, 'EXACT');
SELECT idem_hash('1', 'jcs ');
\set VERBOSITY default
SELECT idem_hash('1', NULL) IS NULL AS hash_null, idem_canonical(NULL::text) IS NULL AS canonical_null;

--
-- 7. JSON text
--

-- it is an untyped literal's type, and a parameter's
SELECT pg_typeof(body), idem_canonical(body)
  FROM (SELECT '{"a":1}' AS body) AS t;

-- what is JSON gives the text that its jsonb value gives
SELECT n, canonical_or_error(body, 'exact') AS text, canonical_or_error(body, 'exact') = idem_canonical(body::jsonb) AS as_jsonb
  FROM (VALUES
	(1, ' null '), (2, E'\t\n\r[ \t\n\r]\t\n\r'), (3, E'{ \n "a" \t : \r 1 \n , "A" : [ { } , { "" : "" } ] }'),
	(4, 'true'), (5, 'false'), (6, '""'), (7, ' -0.0e0 '), (8, '[1,2 , 3]'),
	(9, '"\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\ude02\u001f\u007f\u2028\ufeff\uffff\udbff\udfff"'),
	(10, '{"\u0062":1,"a":2,"\u0022":3,"\\":4,"\/":5,"\n":6}'),
	(11, '[-0,1E5,1e+2,1.5E-3,0.000001,0.0000001,100000000000000000000000,0.10,10.0,1e-20]'),
	(12, '[[[[]]],{"a":[{"b":{}}]}]')) AS t(n, body)
 ORDER BY n;
SELECT idem_canonical(E'"\uffff\ufdd0\U0001ffff"') = E'"\uffff\ufdd0\U0001ffff"' AS noncharacters;

-- what is not is refused, with the byte where it goes wrong; jsonb refuses it too
CREATE TABLE refused (n int, body text);
INSERT INTO refused VALUES
	(1, ''), (2, ' '), (3, '{'), (4, '['), (5, '[1'), (6, '[1,'), (7, '{"a"'), (8, '{"a":'), (9, '{"a":1'),
	(10, '{"a":1,'), (11, '"abc'), (12, '"abc\'), (13, '"\u12'), (14, 'tru'), (15, 'nul'), (16, '-'), (17, '1.'), (18, '1e'),
	(20, '[1,]'), (21, '[,1]'), (22, '[1 2]'), (23, '[1}'), (24, '{"a":1]'), (25, '{"a":1,}'), (26, '{,}'),
	(27, '{a:1}'), (28, '{1:1}'), (29, '{"a" 1}'), (30, '{"a":}'), (31, '{"a":1 "b":2}'), (32, '{"a"::1}'),
	(33, '[1],'), (34, '[1]]'), (35, '1 2'), (36, '{} x'), (37, '"a" "b"'), (38, 'null,'),
	(40, 'True'), (41, 'nulL'), (42, 'falsey'), (43, 'NaN'), (44, 'Infinity'), (45, '-Infinity'), (46, 'undefined'),
	(47, ''''), (48, '''a'''), (49, '// 1'), (50, '/* */ 1'), (51, '1 // one'), (52, ']'), (53, '}'), (54, ':'),
	(60, '01'), (61, '-01'), (62, '00'), (63, '+1'), (64, '.5'), (65, '-.5'), (66, '1.e5'), (67, '1e+'), (68, '1e1.5'),
	(69, '0x1F'), (70, '1_000'), (71, '--1'), (72, '1.2.3'), (73, '[1e]'), (74, '[-]'), (75, '[1.x]'),
	(80, '"\x41"'), (81, '"\u00g0"'), (82, '"\a"'), (83, '"\''"'), (84, '"\U0041"'), (85, '"\u 041"'),
	(86, E'"a\tb"'), (87, E'"a\nb"'), (88, E'"\u0001"'), (89, E'["a", "b\r"]'),
	(90, '"\u0000"'), (91, '{"a\u0000":1}'),
	(92, '"\ud800"'), (93, '"\udc00"'), (94, '"\ud800\ud800"'), (95, '"\udc00\ud800"'), (96, '"\ud800x"'), (97, '"\ud800\u0041"'),
	(98, '"\ud83d\ude0"'), (99, '"\ud83d\n"'),
	(100, '1e131072'), (101, '-1e131072'), (102, '[10e131071]'), (103, '0.1e131073'), (104, '1e-16384'), (105, '0.1e-16383'),
	(106, '1e999999999999999999999'), (107, '1e-999999999999999999999'), (108, '0e-16384'), (109, '0e2147483648'),
	(110, '100000e-16384'),
	(120, E'\ufeff{}'), (121, E'[\ufeff1]'), (122, E'\u00a0[]'), (123, E'[1]\u2028'), (124, E'\u000b1'), (125, E'\u000c1');
SELECT n, CASE WHEN length(body) < 30 THEN body ELSE left(body, 30) || '...' END AS body, canonical_or_error(body, 'exact') AS error
  FROM refused ORDER BY n;
SELECT n, body FROM refused WHERE jsonb_canonical_or_error(body, 'exact') !~ '^[0-9A-Z]{5}: ';

-- where jsonb takes the last of two members with one name, the text is refused
SELECT body, canonical_or_error(body, 'exact') AS error, jsonb_canonical_or_error(body, 'exact') AS of_jsonb
  FROM (VALUES
	(1, '{"a":1,"a":1}'), (2, '{"a":1,"b":2,"\u0061":3}'), (3, '{"":1,"":2}'), (4, '[0,{"x":{"k":1,"l":2,"k":3}}]'),
	(5, E'{"\u00e9":1,"\\u00e9":2}'), (6, '{"\/":1,"\u002f":2}'), (7, '{"abcdefgh":1,"abcdefg\u0068":2}'),
	(8, '{"a long name here":1,"b":{"a long name here":1},"a long name here":2}'), (9, '{"a":1,"a":'),
	(10, '{"\ud83d\ude02":1,"b":2,"\uD83D\uDE02":3}')) AS t(n, body)
 ORDER BY n;
SELECT idem_hash('{"a":1, "a":2}');
SELECT canonical_or_error(format('{%s,"k777":0}', string_agg(format('"k%s":%s', n, n), ',')), 'exact') AS wide
  FROM generate_series(1, 2000) AS n;
-- not duplicates
SELECT idem_canonical('{"a":{"a":{"a":1}},"A":1,"aa":[{"a":1},{"a":1}],"\u00e9":1,"e\u0301":2}');
SELECT idem_canonical('{"12345678b":1,"12345678a":2,"12345678":3,"1234567":4,"1234567890123456b":5,"1234567890123456a":6,"1234567\u00e9":7,"1234567\u00e8":8}');

-- the numbers that jsonb can hold, and no others
SELECT count(*) AS numbers, count(*) FILTER (WHERE t NOT LIKE '22003: %') AS accepted,
	   count(*) FILTER (WHERE (t LIKE '22003: %') <> (j LIKE '22003: %')) AS wrong,
	   count(*) FILTER (WHERE t NOT LIKE '22003: %' AND t <> j) AS differ
  FROM unnest('{0,-0,1,9,10,0.1,0.10,0.01,0.010,12.34,99999.00001,0.0,0.00}'::text[]) AS mantissa,
	   unnest('{-2147483648,-1073741824,-20000,-16390,-16385,-16384,-16383,-16382,-16381,-16380,-5,0,5,16383,131060,131066,131067,131068,131069,131070,131071,131072,131073,131074,131080,140000,1073741822,1073741824,2147483648}'::bigint[]) AS exponent,
	   LATERAL (SELECT canonical_or_error(mantissa || 'e' || exponent, 'exact') AS t,
					   jsonb_canonical_or_error(mantissa || 'e' || exponent, 'exact') AS j) AS e;
SELECT idem_hash(n) = idem_hash(n::jsonb) AS hash_equal
  FROM (VALUES (repeat('7', 131072) || '.' || repeat('3', 16383)), ('1' || repeat('0', 131071)),
			   ('0.' || repeat('0', 16382) || '1'), (repeat('9', 140000) || 'e-16000'),
			   ('0.' || repeat('0', 100000) || '1e100000'), ('-' || repeat('123456789', 100) || '.5e-400')) AS t(n);
SELECT left(canonical_or_error(n, 'exact'), 120) AS error
  FROM (VALUES (1, repeat('7', 131073)), (2, '0.' || repeat('0', 16384)), (3, '1.' || repeat('5', 16384))) AS t(o, n) ORDER BY o;

-- big exponents cost nothing here either
SELECT idem_canonical(body::text) = '[' || rtrim(repeat('1e+131071,', 10000), ',') || ']' AS text_is_short,
	   idem_hash(body::text) = (SELECT idem_hash(big.body) FROM big) AS hash_is_right
  FROM (SELECT '[' || string_agg('1e131071', ',') || ']' AS body FROM generate_series(1, 10000)) AS t;

-- depth
SELECT idem_hash(repeat('[', 1000) || '1' || repeat(']', 1000)) = idem_hash(nested('[', '1', ']', 1000)) AS arrays,
	   idem_hash(repeat('{"a":', 1000) || '1' || repeat('}', 1000)) = idem_hash(nested('{"a":', '1', '}', 1000)) AS objects;
SELECT idem_hash(repeat('[', 1001) || '1' || repeat(']', 1001));
SELECT idem_hash(repeat('{"a":[', 100000));
-- with as little stack as a server can have
SET max_stack_depth = '100kB';
SELECT length(idem_canonical(repeat('[{"a":', 500) || '1' || repeat('}]', 500)));
RESET max_stack_depth;

-- Long texts, where the ends of containers are not all remembered (262,144 bytes
-- is the length of a window in the reader)
CREATE TABLE long_text (name text, body text);
INSERT INTO long_text
SELECT 'chain', repeat('{"b":1,"a":', 900) || '[' || repeat('1,', 200000) || '1]' || repeat(',"0":{}}', 900)
UNION ALL
SELECT 'chains in an object', '{' || string_agg(format('"%s":%s', n, repeat('{"z":[],"b":{"":{}},"a":', 300) || n || repeat('}', 300)), ', ' ORDER BY n DESC) || '}'
  FROM generate_series(1, 60) AS n
UNION ALL
SELECT 'chains in an array', '[' || string_agg(repeat('{"b":{"":{}},"a":', 300) || n || repeat('}', 300), ' , ') || ']' FROM generate_series(1, 60) AS n
UNION ALL
SELECT 'long members', '{' || string_agg(format('"%s":{"k":{"x":{"y":1},"a":[%s]},"b":{"c":{}}}', 10 - n, rtrim(repeat('{"q":{"p":{}},"a":[]},', 15000), ',')), ',') || '}' FROM generate_series(1, 3) AS n
UNION ALL
SELECT 'wide', '{' || string_agg(format('"%s":{"n":%s,"a":{"":{}},"\u00e9":"\u00e9"}', md5(n::text), n), ',') || '}' FROM generate_series(1, 10000) AS n
UNION ALL
SELECT 'around a window', format('[%s,{"b":{"d":{},"c":{}},"a":"%s"}]', k, repeat('x', 262144 - 60 + k)) FROM generate_series(1, 60) AS k
UNION ALL
SELECT 'of a window', format('{"b":{"d":{},"c":{}},"a":"%s"}', repeat('x', 262144 - 40 + k)) FROM generate_series(1, 40) AS k;
SELECT name, count(*) AS texts, bool_and(idem_hash(body) = idem_hash(body::jsonb)) AS as_jsonb,
	   bool_and(idem_hash(body, 'jcs') = digest(convert_to(idem_canonical(body::jsonb), 'UTF8'), 'sha256')) AS hash_of_text
  FROM long_text GROUP BY name ORDER BY name COLLATE "C";

-- an error leaves nothing behind
CREATE FUNCTION memory_after_errors(calls int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	bad text[] := ARRAY['{' || (SELECT string_agg(format('"k%s":[%s]', n, n), ',') FROM generate_series(1, 300) AS n) || ',"k9":1}',
						'[{"\u0061' || repeat('a', 2000) || '":{"b":1,"b":2}}]', '[' || repeat('{},', 500) || '1e999999]'];
BEGIN
	FOR i IN 1 .. calls LOOP
		BEGIN
			PERFORM idem_hash(bad[1 + i % 3]);
		EXCEPTION WHEN duplicate_json_object_key_value OR numeric_value_out_of_range THEN
			NULL;
		END;
		BEGIN
			PERFORM idem_hash('[1,2,12345678901234567890]'::jsonb, 'jcs');
		EXCEPTION WHEN numeric_value_out_of_range THEN
			NULL;
		END;
	END LOOP;
	RETURN (SELECT sum(used_bytes) FROM pg_backend_memory_contexts);
END
$$;
SELECT memory_after_errors(100) AS before \gset
SELECT memory_after_errors(3000) - :before < 100000 AS nothing_left;

--
-- 8. The vectors of RFC 8785's author (test/data/jcs)
--
CREATE TABLE vector (name text, input text, output text);
INSERT INTO vector VALUES
	('arrays',
	 E'[\n  56,\n  {\n    "d": true,\n    "10": null,\n    "1": [ ]\n  }\n]\n',
	 E'[56,{"1":[],"10":null,"d":true}]'),
	('french',
	 E'{\n  "peach": "This sorting order",\n  "p\u00e9ch\u00e9": "is wrong according to French",\n  "p\u00eache": "but canonicalization MUST",\n  "sin":   "ignore locale"\n}\n',
	 E'{"peach":"This sorting order","p\u00e9ch\u00e9":"is wrong according to French","p\u00eache":"but canonicalization MUST","sin":"ignore locale"}'),
	('structures',
	 E'{\n  "1": {"f": {"f": "hi","F": 5} ,"\\n": 56.0},\n  "10": { },\n  "": "empty",\n  "a": { },\n  "111": [ {"e": "yes","E": "no" } ],\n  "A": { }\n}',
	 E'{"":"empty","1":{"\\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}'),
	('unicode',
	 E'{\n  "Unnormalized Unicode":"A\\u030a"\n}\n',
	 E'{"Unnormalized Unicode":"A\u030a"}'),
	('values',
	 E'{\n  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],\n  "string": "\\u20ac$\\u000F\\u000aA''\\u0042\\u0022\\u005c\\\\\\"\\/",\n  "literals": [null, true, false]\n}',
	 E'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"\u20ac$\\u000f\\nA''B\\"\\\\\\\\\\"/"}'),
	('weird',
	 E'{\n  "\\u20ac": "Euro Sign",\n  "\\r": "Carriage Return",\n  "\\u000a": "Newline",\n  "1": "One",\n  "\\u0080": "Control\\u007f",\n  "\\ud83d\\ude02": "Smiley",\n  "\\u00f6": "Latin Small Letter O With Diaeresis",\n  "\\ufb33": "Hebrew Letter Dalet With Dagesh",\n  "</script>": "Browser Challenge"\n}\n',
	 E'{"\\n":"Newline","\\r":"Carriage Return","1":"One","</script>":"Browser Challenge","\u0080":"Control\u007f","\u00f6":"Latin Small Letter O With Diaeresis","\u20ac":"Euro Sign","\U0001f602":"Smiley","\ufb33":"Hebrew Letter Dalet With Dagesh"}');

-- the literals above are the files, byte for byte
SELECT name, 'input' AS folder, encode(digest(convert_to(input, 'UTF8'), 'sha256'), 'hex') AS sha256 FROM vector
UNION ALL
SELECT name, 'output', encode(digest(convert_to(output, 'UTF8'), 'sha256'), 'hex') FROM vector
ORDER BY folder, name;

-- all but one number of "values"
SELECT name, idem_canonical(input::jsonb) = output AS text_equal,
	   idem_hash(input::jsonb) = digest(convert_to(output, 'UTF8'), 'sha256') AS hash_equal
  FROM vector ORDER BY name;

-- the same from the file as text, and in mode jcs, which refuses that number
SELECT name, idem_canonical(input) = output AS text_equal,
	   idem_hash(input) = digest(convert_to(output, 'UTF8'), 'sha256') AS hash_equal,
	   canonical_or_error(input, 'jcs') = output AS jcs_equal
  FROM vector ORDER BY name;
SELECT canonical_or_error(input, 'jcs') FROM vector WHERE name = 'values';

-- that number, which RFC 8785 rounds to a double, and nothing besides
SELECT idem_canonical(input::jsonb) =
	   replace(output, '333333333.3333333,', '333333333.33333329,') AS differs_in_one_number
  FROM vector WHERE name = 'values';

-- an output read again is its own canonical text
SELECT count(*) FROM vector WHERE idem_canonical(output::jsonb) = output AND idem_canonical(output) = output;

--
-- 9. Random documents against a second writer of the same form
--

-- a name as its UTF-16 code units
CREATE FUNCTION utf16(name text) RETURNS int[] LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
	SELECT coalesce(array_agg(unit ORDER BY n, half), '{}')
	  FROM regexp_split_to_table(name, '') WITH ORDINALITY AS c(ch, n),
		   LATERAL (SELECT ascii(ch) AS code) AS p,
		   LATERAL (SELECT 1, code WHERE code < 65536
					UNION ALL SELECT 1, 55296 + ((code - 65536) >> 10) WHERE code >= 65536
					UNION ALL SELECT 2, 56320 + ((code - 65536) & 1023) WHERE code >= 65536) AS u(half, unit)
	 WHERE ch <> '';
END;

-- a number, by way of its decimal text
CREATE FUNCTION oracle_number(value numeric) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	plain text := trim_scale(abs(value))::text;
	whole text := split_part(plain, '.', 1);
	all_digits text := whole || split_part(plain, '.', 2);
	digits text := trim(BOTH '0' FROM all_digits);
	k int := length(digits);
	point int := length(whole) - (length(all_digits) - length(ltrim(all_digits, '0')));
BEGIN
	RETURN CASE WHEN value < 0 THEN '-' ELSE '' END || CASE
		WHEN k = 0 THEN '0'
		WHEN point BETWEEN k AND 21 THEN rpad(digits, point, '0')
		WHEN point BETWEEN 1 AND 21 THEN left(digits, point) || '.' || substr(digits, point + 1)
		WHEN point BETWEEN -5 AND 0 THEN '0.' || repeat('0', -point) || digits
		ELSE left(digits, 1) || CASE WHEN k > 1 THEN '.' ELSE '' END || substr(digits, 2)
			|| 'e' || to_char(point - 1, 'FMSG999990')
		END;
END
$$;

CREATE FUNCTION oracle(doc jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN CASE jsonb_typeof(doc)
		WHEN 'object' THEN
			(SELECT '{' || coalesce(string_agg(to_json(key)::text || ':' || oracle(value), ','
											   ORDER BY utf16(key)), '') || '}'
			   FROM jsonb_each(doc))
		WHEN 'array' THEN
			(SELECT '[' || coalesce(string_agg(oracle(value), ',' ORDER BY n), '') || ']'
			   FROM jsonb_array_elements(doc) WITH ORDINALITY AS e(value, n))
		WHEN 'string' THEN to_json(doc #>> '{}')::text
		WHEN 'number' THEN oracle_number((doc #>> '{}')::numeric)
		ELSE doc::text
		END;
END
$$;

CREATE FUNCTION random_int(low int, high int) RETURNS int LANGUAGE sql VOLATILE
	RETURN low + floor(random() * (high - low + 1))::int;

CREATE FUNCTION pick(choices text[]) RETURNS text LANGUAGE sql VOLATILE
	RETURN choices[random_int(1, array_length(choices, 1))];

CREATE FUNCTION random_string() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	s text := '';
BEGIN
	FOR i IN 1 .. random_int(0, 4) LOOP
		s := s || pick(ARRAY['a', 'b', 'A', '0', ' ', '/', '"', '\', E'\u0001', E'\u001f', E'\n', E'\t',
			E'\u007f', E'\u0080', E'\u00e9', E'\u0301', E'\u20ac', E'\u2028', E'\ud7ff', E'\ue000',
			E'\ufb33', E'\uffff', E'\U00010000', E'\U0001F602', E'\U0010FFFF']);
	END LOOP;
	RETURN s;
END
$$;

-- 0 to 40 digits, the point somewhere among or outside of them
CREATE FUNCTION random_number() RETURNS numeric LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	s text := '';
BEGIN
	FOR i IN 1 .. random_int(0, pick('{1,3,17,40}')::int) LOOP
		s := s || pick('{0,0,1,2,3,4,5,6,7,8,9,9}');
	END LOOP;
	RETURN (pick(ARRAY['', '-']) || '0' || s || 'e' || random_int(-45, 25))::numeric;
END
$$;

CREATE FUNCTION random_doc(depth int) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	kind int := random_int(1, CASE WHEN depth > 0 THEN 11 ELSE 6 END);
	doc jsonb;
BEGIN
	IF kind <= 2 THEN RETURN to_jsonb(random_number()); END IF;
	IF kind <= 4 THEN RETURN to_jsonb(random_string()); END IF;
	IF kind <= 6 THEN RETURN pick('{null,true,false}')::jsonb; END IF;
	IF kind <= 8 THEN
		doc := '[]';
		FOR i IN 1 .. random_int(0, 4) LOOP
			doc := doc || jsonb_build_array(random_doc(depth - 1));
		END LOOP;
		RETURN doc;
	END IF;
	doc := '{}';
	FOR i IN 1 .. random_int(0, 6) LOOP
		doc := doc || jsonb_build_object(random_string(), random_doc(depth - 1));
	END LOOP;
	RETURN doc;
END
$$;

-- the same value in another spelling: white space, order of names, escapes, exponents
CREATE FUNCTION spell_string(s text) RETURNS text LANGUAGE sql VOLATILE
BEGIN ATOMIC
	SELECT '"' || coalesce(string_agg(
			CASE WHEN random() < 0.5 THEN substr(to_json(ch)::text, 2, length(to_json(ch)::text) - 2)
				 ELSE (SELECT string_agg('\u' || lpad(CASE WHEN random() < 0.5 THEN to_hex(unit)
														   ELSE upper(to_hex(unit)) END, 4, '0'), '' ORDER BY h)
						 FROM unnest(utf16(ch)) WITH ORDINALITY AS u(unit, h)) END, '' ORDER BY n), '') || '"'
	  FROM regexp_split_to_table(s, '') WITH ORDINALITY AS c(ch, n) WHERE ch <> '';
END;

CREATE FUNCTION spell_number(value numeric) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	shift int := random_int(-30, 30);
	s text := (value * ('1e' || shift)::numeric)::text;
BEGIN
	IF random() < 0.5 THEN
		s := s || CASE WHEN s LIKE '%.%' THEN '000' ELSE '.00' END;
	END IF;
	IF value = 0 AND random() < 0.5 THEN
		s := '-' || s;
	END IF;
	RETURN s || pick('{e,E}') || CASE WHEN shift <= 0 AND random() < 0.5 THEN '+' ELSE '' END || -shift;
END
$$;

CREATE FUNCTION spell(doc jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	gap text := pick(ARRAY['', ' ', E'\t', E'\r\n  ']);
BEGIN
	RETURN gap || CASE jsonb_typeof(doc)
		WHEN 'object' THEN
			(SELECT '{' || coalesce(string_agg(gap || spell_string(key) || gap || ':' || spell(value), ','
											   ORDER BY random()), gap) || '}'
			   FROM jsonb_each(doc))
		WHEN 'array' THEN
			(SELECT '[' || coalesce(string_agg(spell(value), ',' ORDER BY n), gap) || ']'
			   FROM jsonb_array_elements(doc) WITH ORDINALITY AS e(value, n))
		WHEN 'string' THEN spell_string(doc #>> '{}')
		WHEN 'number' THEN spell_number((doc #>> '{}')::numeric)
		ELSE doc::text
		END || gap;
END
$$;

-- another value: one thing in it is changed
CREATE FUNCTION change(doc jsonb) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	key text;
	at int;
BEGIN
	CASE jsonb_typeof(doc)
		WHEN 'object' THEN
			SELECT k INTO key FROM jsonb_object_keys(doc) AS k ORDER BY random() LIMIT 1;
			RETURN CASE
				WHEN key IS NULL OR random() < 0.2 THEN doc || jsonb_build_object(coalesce(key, '') || 'new name', NULL)
				WHEN random() < 0.2 THEN doc - key
				ELSE doc || jsonb_build_object(key, change(doc -> key)) END;
		WHEN 'array' THEN
			at := random_int(0, jsonb_array_length(doc) - 1);
			RETURN CASE
				WHEN doc = '[]' OR random() < 0.2 THEN doc || '[null]'
				WHEN random() < 0.2 THEN doc - at
				ELSE jsonb_set(doc, ARRAY[at::text], change(doc -> at)) END;
		WHEN 'string' THEN
			RETURN to_jsonb((doc #>> '{}') || pick(ARRAY[' ', 'x', E'\u0301']));
		WHEN 'number' THEN
			RETURN to_jsonb((doc #>> '{}')::numeric + ('1e' || random_int(-60, 60))::numeric);
		ELSE
			RETURN CASE WHEN doc = 'true' THEN 'false' ELSE 'true' END;
	END CASE;
END
$$;

SELECT setseed(0.8785);
CREATE TABLE doc AS
SELECT n, random_doc(3) AS body FROM generate_series(1, 1500) AS n;
CREATE TABLE spelling AS
SELECT n, body, spell(body) AS spelling FROM doc, generate_series(1, 3);
CREATE TABLE changed AS
SELECT n, body, change(body) AS other FROM doc;

-- the second writer agrees, and pgcrypto hashes the text to the same
SELECT count(*) AS wrong FROM doc WHERE idem_canonical(body) <> oracle(body);
SELECT count(*) AS wrong FROM doc
 WHERE idem_hash(body) <> digest(convert_to(idem_canonical(body), 'UTF8'), 'sha256');

-- read again, the text is the same value and the same text
SELECT count(*) AS wrong FROM doc
 WHERE idem_canonical(body)::jsonb <> body
	OR idem_canonical(idem_canonical(body)::jsonb) <> idem_canonical(body);

-- no other spelling changes the hash, any other value does
SELECT count(*) AS bad_test FROM spelling WHERE spelling::jsonb <> body;
SELECT count(*) AS wrong FROM spelling WHERE idem_hash(spelling::jsonb) <> idem_hash(body);
SELECT count(*) AS wrong FROM spelling WHERE idem_hash(spelling) <> idem_hash(body) OR idem_canonical(spelling) <> idem_canonical(body);
SELECT count(*) AS bad_test FROM changed WHERE other = body;
SELECT count(*) AS wrong FROM changed WHERE idem_hash(other) = idem_hash(body);
SELECT count(DISTINCT body) > 800 AS enough_values,
	   count(DISTINCT body) = count(DISTINCT idem_hash(body)) AS one_hash_per_value
  FROM (SELECT body FROM doc UNION ALL SELECT other FROM changed) AS t;

-- numbers alone, more of them
SELECT count(*) AS wrong
  FROM (SELECT random_number() AS value FROM generate_series(1, 5000)) AS r
 WHERE idem_canonical(to_jsonb(value)) <> oracle_number(value)
	OR idem_hash(spell_number(value)::jsonb) <> sha256(oracle_number(value)::bytea)
	OR idem_hash(spell_number(value)) <> sha256(oracle_number(value)::bytea);

-- mode jcs: what it takes has 15 digits or is an integer of at most 2^53, and it takes all of those
SELECT count(*) FILTER (WHERE accepted) > 500 AS enough_accepted, count(*) FILTER (WHERE NOT accepted) > 500 AS enough_refused,
	   count(*) FILTER (WHERE accepted <> (digits <= 15 OR value = trunc(value) AND abs(value) <= 9007199254740992)) AS wrong
  FROM (SELECT value, length(trim(BOTH '0' FROM translate(abs(value)::text, '.', ''))) AS digits,
			   canonical_or_error(spell_number(value), 'jcs') NOT LIKE '22003: %' AS accepted,
			   jsonb_canonical_or_error(spell_number(value), 'jcs') NOT LIKE '22003: %' AS jsonb_accepted
		  FROM (SELECT random_number() AS value FROM generate_series(1, 5000)) AS r) AS n;

--
-- 10. In a generated column and a unique index
--
CREATE TABLE request (
	body jsonb,
	hash bytea GENERATED ALWAYS AS (idem_hash(body)) STORED
);
CREATE UNIQUE INDEX request_hash_idx ON request (idem_hash(body));
INSERT INTO request VALUES ('{"amount": 10.50, "currency": "INR"}'), ('{"amount": 10.51, "currency": "INR"}');
\set VERBOSITY terse
INSERT INTO request VALUES ('{"currency": "INR", "amount": 105e-1}');
\set VERBOSITY default
SELECT body, hash = idem_hash(body) AS hash_matches FROM request ORDER BY body;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM request WHERE idem_hash(body) = idem_hash('{"currency":"INR","amount":10.5}');
SELECT body FROM request WHERE idem_hash(body) = idem_hash('{"currency":"INR","amount":10.5}');
RESET enable_seqscan;
RESET enable_bitmapscan;

-- the same of text
CREATE TABLE request_text (
	body text,
	hash bytea GENERATED ALWAYS AS (idem_hash(body, 'jcs')) STORED
);
CREATE UNIQUE INDEX request_text_hash_idx ON request_text (idem_hash(body));
INSERT INTO request_text VALUES ('{"amount": 10.50, "currency": "INR"}');
\set VERBOSITY terse
INSERT INTO request_text VALUES ('{"currency": "INR", "amount": 105e-1}');
INSERT INTO request_text VALUES ('{"currency": "INR", "amount": 105e-1, "amount": 1}');
\set VERBOSITY default
SELECT body, hash = idem_hash(body) AS hash_matches FROM request_text;

-- a value that is stored compressed and out of line
CREATE TABLE toasted AS
SELECT jsonb_object_agg('k' || n, repeat(md5(n::text), 20)) AS body FROM generate_series(1, 500) AS n;
SELECT pg_column_size(body) < length(body::text) AS compressed,
	   idem_hash(body) = digest(oracle(body), 'sha256') AS hash_is_right,
	   idem_hash(body::text) = digest(oracle(body), 'sha256') AS hash_of_text_is_right
  FROM toasted;

--
-- 11. Databases that are not UTF-8
--
-- The hash is that of the UTF-8 text, or there is none.
--
\set utf8_database :DBNAME
SELECT idem_hash('{"\u00fc":1,"z":"\u00e9\n","\u00df":[]}') AS latin_hash,
	   idem_hash('{"\uff21":1,"\u3042":2,"\u4e9c":"\u3042\u0001","a":3}') AS japanese_hash \gset
DROP DATABASE IF EXISTS regression_idem_latin1;
DROP DATABASE IF EXISTS regression_idem_euc_jp;
DROP DATABASE IF EXISTS regression_idem_sql_ascii;
DROP DATABASE IF EXISTS regression_idem_win1252;
CREATE DATABASE regression_idem_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE regression_idem_euc_jp ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE regression_idem_sql_ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE regression_idem_win1252 ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0;

\c regression_idem_latin1
SET client_min_messages = warning;
CREATE EXTENSION idem CASCADE;
-- escapes of characters that it lacks can be hashed, but not shown
SELECT idem_hash('{"\u00fc":1,"z":"\u00e9\n","\u00df":[]}') = :'latin_hash' AS hash_of_escapes,
	   idem_hash('{"' || chr(252) || '":1,"z":"' || chr(233) || '\n","' || chr(223) || '":[]}') = :'latin_hash' AS hash_of_characters,
	   idem_hash('{"\uff21":1,"\u3042":2,"\u4e9c":"\u3042\u0001","a":3}') = :'japanese_hash' AS hash_of_others;
SELECT idem_canonical('["\u3042"]');
SELECT '["\u3042"]'::jsonb;
SELECT idem_hash('{"' || chr(252) || '":1,"\u00fc":2}');
SELECT idem_hash('{"a":"' || repeat(chr(233), 100000) || '","b":01}');
SELECT idem_hash('"' || repeat(chr(233), 100000) || '"') = idem_hash(to_jsonb(repeat(chr(233), 100000))) AS long_text;
SELECT idem_hash(body) = :'latin_hash' AS hash_of_utf8,
	   digest(convert_to(idem_canonical(body), 'UTF8'), 'sha256') = :'latin_hash' AS text_of_utf8,
	   encode(convert_to(idem_canonical(body), 'LATIN1'), 'escape') AS bytes_here
  FROM (VALUES ('{"\u00fc":1,"z":"\u00e9\n","\u00df":[]}'::jsonb)) AS t(body);
SELECT idem_canonical('{"b":1.0,"a":"plain"}');
SELECT octet_length(idem_canonical(to_jsonb(repeat(chr(233), 100000)))) AS octets_here,
	   idem_hash(to_jsonb(repeat(chr(233), 100000))) =
	   digest('"' || repeat(chr(233), 100000) || '"', 'sha256') AS hash_of_latin1,
	   idem_hash(to_jsonb(repeat(chr(233), 100000))) =
	   digest(convert_to('"' || repeat(chr(233), 100000) || '"', 'UTF8'), 'sha256') AS hash_of_utf8;

-- the order of names is that of UTF-16, not that of the bytes here
\c regression_idem_euc_jp
SET client_min_messages = warning;
CREATE EXTENSION idem CASCADE;
SELECT idem_hash(body) = :'japanese_hash' AS hash_of_escapes,
	   idem_hash(body::jsonb::text) = :'japanese_hash' AS hash_of_characters,
	   body::jsonb::text <> body AS characters,
	   idem_canonical(body) = idem_canonical(body::jsonb) AS text_as_of_jsonb,
	   -- its conversion goes in pieces, which end between characters
	   idem_hash('"ab' || long_string || '"') = digest(convert_to('"ab' || long_string || '"', 'UTF8'), 'sha256') AS long_text
  FROM (VALUES ('{"\uff21":1,"\u3042":2,"\u4e9c":"\u3042\u0001","a":3}')) AS t(body),
	   LATERAL (SELECT repeat('["\u4e9c"]'::jsonb ->> 0, 100000) AS long_string) AS l;
SELECT idem_hash(body) = :'japanese_hash' AS hash_of_utf8,
	   digest(convert_to(idem_canonical(body), 'UTF8'), 'sha256') = :'japanese_hash' AS text_of_utf8,
	   convert_to(idem_canonical(body), 'EUC_JP') AS bytes_here
  FROM (VALUES ('{"\uff21":1,"\u3042":2,"\u4e9c":"\u3042\u0001","a":3}'::jsonb)) AS t(body);

-- bytes without a declared encoding: valid UTF-8 is taken as that
\c regression_idem_sql_ascii
SET client_min_messages = warning;
CREATE EXTENSION idem CASCADE;
SELECT idem_hash('{"\u00fc":1,"z":"\u00e9\n","\u00df":[]}') = :'latin_hash' AS hash_of_escapes,
	   idem_hash(convert_from('\x7b22c3bc223a312c227a223a22c3a95c6e222c22c39f223a5b5d7d', 'SQL_ASCII')) = :'latin_hash' AS hash_of_bytes;
CREATE FUNCTION hash_or_error(body bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN idem_hash(convert_from(body, 'SQL_ASCII'));
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;
SELECT bytes, hash_or_error('\x22'::bytea || bytes || '\x22') AS hash
  FROM (VALUES (1, '\x61'::bytea), (2, '\xc3a9'), (3, '\xe0a080'), (4, '\xed9fbf'), (5, '\xee8080'), (6, '\xefbfbf'), (7, '\xf0908080'), (8, '\xf48fbfbf'),
	(20, '\x80'), (21, '\x61bf'), (22, '\xc0af'), (23, '\xc1bf'), (24, '\xc3'), (25, '\xc328'), (26, '\xe08080'), (27, '\xe09fbf'), (28, '\xe28228'),
	(29, '\xe282'), (30, '\xeda080'), (31, '\xedbfbf'), (32, '\xf0808080'), (33, '\xf08fbfbf'), (34, '\xf0908028'), (35, '\xf4908080'), (36, '\xf5808080'),
	(37, '\xff'), (38, '\xfe'), (39, '\x616161616161616161616161e9'), (40, '\x61616161616161c3a961616161e9616161616161')) AS t(n, bytes)
 ORDER BY n;
SELECT hash_or_error('\xefbbbf7b7d') AS byte_order_mark, hash_or_error('\xfffe5b005d00') AS utf16;
DROP FUNCTION hash_or_error;
SELECT idem_hash(body) = :'latin_hash' AS hash_of_utf8,
	   digest(idem_canonical(body), 'sha256') = :'latin_hash' AS text_of_utf8
  FROM (SELECT jsonb_build_object(convert_from('\xc3bc', 'SQL_ASCII'), 1,
								  'z', convert_from('\xc3a90a', 'SQL_ASCII'),
								  convert_from('\xc39f', 'SQL_ASCII'), '[]'::jsonb) AS body) AS t;
SELECT idem_canonical('{"b":1.0,"a":"plain"}');
SELECT idem_hash(to_jsonb(convert_from('\xe9', 'SQL_ASCII')));
SELECT idem_canonical(jsonb_build_object(convert_from('\xe9', 'SQL_ASCII'), 1));
\set VERBOSITY sqlstate
SELECT idem_hash(to_jsonb(convert_from('\xeda080', 'SQL_ASCII')));
\set VERBOSITY default

-- a byte that stands for no character
\c regression_idem_win1252
SET client_min_messages = warning;
CREATE EXTENSION idem CASCADE;
SELECT idem_hash(to_jsonb(convert_from('\x80', 'WIN1252'))) = sha256('\x22e282ac22') AS euro_sign;
SELECT idem_hash('"' || convert_from('\x80', 'WIN1252') || '"') = sha256('\x22e282ac22') AS euro_sign_in_text;
SELECT idem_hash(to_jsonb(convert_from('\x6181', 'WIN1252')));
SELECT idem_hash('"' || convert_from('\x6181', 'WIN1252') || '"');
SELECT idem_canonical(jsonb_build_object('a', jsonb_build_array(convert_from('\x6181', 'WIN1252'))));

\c :utf8_database
SET client_min_messages = warning;
DROP DATABASE regression_idem_latin1;
DROP DATABASE regression_idem_euc_jp;
DROP DATABASE regression_idem_sql_ascii;
DROP DATABASE regression_idem_win1252;
DROP SCHEMA canonical_test CASCADE;
