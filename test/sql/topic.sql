--
-- idem.topic: settings of single topics, and what they may be
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
\getenv source PG_ABS_SRCDIR
\set refused :source '/sql/include/refused.sql'
\i :refused

-- the defaults
INSERT INTO idem.topic (topic) VALUES ('Orders.v1');
SELECT * FROM idem.topic;
-- names differ by case, as in Kafka
INSERT INTO idem.topic VALUES ('orders.V1', 'skip', 3, 'send');
UPDATE idem.topic SET max_in_flight_per_key = 1 WHERE topic = 'Orders.v1';
SELECT * FROM idem.topic ORDER BY topic;

-- what no topic can have
SELECT pg_temp.refused(s) FROM unnest(ARRAY[
	'INSERT INTO idem.topic (topic) VALUES (''Orders.v1'')', 'INSERT INTO idem.topic (topic) VALUES (NULL)', 'INSERT INTO idem.topic (topic) VALUES ('''')',
	'INSERT INTO idem.topic (topic) VALUES (''a b'')', 'INSERT INTO idem.topic (topic) VALUES (repeat(''a'', 250))', 'INSERT INTO idem.topic VALUES (''t'', ''park'')',
	'INSERT INTO idem.topic VALUES (''t'', NULL)', 'INSERT INTO idem.topic VALUES (''t'', ''BLOCK'')', 'INSERT INTO idem.topic VALUES (''t'', ''skip'', -1)',
	'INSERT INTO idem.topic VALUES (''t'', ''skip'', NULL)', 'INSERT INTO idem.topic VALUES (''t'', ''skip'', 0, ''append'')', 'INSERT INTO idem.topic VALUES (''t'', ''skip'', 0, NULL)',
	'UPDATE idem.topic SET on_failure = ''stop''']) AS s \g (format=unaligned tuples_only=on)

-- the trigger works whatever session_replication_role is, and is nothing to call
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'idem.topic'::regclass ORDER BY tgname;
SELECT pg_temp.refused('SELECT idem.topic_changed()');
BEGIN;
TRUNCATE idem.topic;
SELECT count(*) FROM idem.topic;
ROLLBACK;
DELETE FROM idem.topic;
