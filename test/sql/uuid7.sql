--
-- Version 7 UUIDs: idem_uuid7()
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;

-- the Unix time in milliseconds that is in the first 48 bits
CREATE FUNCTION pg_temp.milliseconds(id uuid) RETURNS bigint LANGUAGE SQL AS $$
	SELECT ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
$$;
-- and with the 12 bits of the fraction, in units of 1/4096 ms
CREATE FUNCTION pg_temp.fractions(id uuid) RETURNS bigint LANGUAGE SQL AS $$
	SELECT pg_temp.milliseconds(id) * 4096 + ('x' || substr(replace(id::text, '-', ''), 14, 3))::bit(12)::int
$$;

-- the time of the clock
SELECT clock_timestamp() AS before \gset
SELECT idem_uuid7() AS id \gset
SELECT clock_timestamp() AS after \gset
SELECT pg_temp.milliseconds(:'id') BETWEEN floor(extract(epoch FROM :'before'::timestamptz) * 1000)
	   AND floor(extract(epoch FROM :'after'::timestamptz) * 1000) AS in_time;
-- the fraction is that of the clock, not noise (a microsecond is 4 units)
SELECT pg_temp.fractions(:'id') BETWEEN floor(extract(epoch FROM :'before'::timestamptz) * 4096000) - 4
	   AND floor(extract(epoch FROM :'after'::timestamptz) * 4096000) + 8 AS in_time;

CREATE TEMP TABLE made AS SELECT n, idem_uuid7() AS id, clock_timestamp() AS after FROM generate_series(1, 10000) AS n;
SELECT count(*), count(DISTINCT id) AS distinct_ids, count(DISTINCT right(id::text, 15)) AS distinct_random,
	   count(*) FILTER (WHERE substr(id::text, 15, 1) = '7') AS version_7,
	   count(*) FILTER (WHERE substr(id::text, 20, 1) IN ('8', '9', 'a', 'b')) AS variant
  FROM made;
-- they always grow in a session, as UUIDs and as text, and over statements and transactions
SELECT bool_and(id > before) AS grows, bool_and(id::text COLLATE "C" > before::text) AS text_grows
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM made) AS pair WHERE before IS NOT NULL;
SELECT idem_uuid7() > id AS grows FROM made WHERE n = 10000;
SELECT idem_uuid7() AS a \gset
BEGIN;
SELECT idem_uuid7() AS b \gset
ROLLBACK;
SELECT idem_uuid7() AS c \gset
SELECT :'a'::uuid < :'b'::uuid AND :'b'::uuid < :'c'::uuid AS grows;
-- not ahead of the clock by more than it takes to grow: 10,000 in one loop
SELECT max(pg_temp.milliseconds(id) - floor(extract(epoch FROM after) * 1000)) <= 3 AS near_the_clock FROM made;
-- the random bits are random: each of the 62 is set about as often as not
SELECT count(*) AS bits, bool_and(abs(set - 5000) < 400) AS fair
  FROM (SELECT bit, count(*) FILTER (WHERE get_bit(('x' || right(replace(id::text, '-', ''), 16))::bit(64), bit) = 1) AS set
		  FROM made, generate_series(2, 63) AS bit GROUP BY bit) AS t;
-- volatile: one for each row
SELECT provolatile, proisstrict, proparallel FROM pg_proc WHERE oid = 'idem_uuid7()'::regprocedure;
