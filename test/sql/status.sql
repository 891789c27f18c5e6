--
-- Without preloading: idem.relay_status says so, and the functions work
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;

SHOW shared_preload_libraries;
\x
SELECT database = current_database() AS database, pid, state, hint, brokers, librdkafka, started_at, in_flight, published, failed,
	   last_published_at, last_error, last_error_at
  FROM idem.relay_status;
\x
SELECT count(*) AS rows FROM idem.relay_status;
SELECT string_agg(attname, ' ' ORDER BY attnum) AS columns FROM pg_attribute WHERE attrelid = 'idem.relay_status'::regclass AND attnum > 0;

-- nobody hears it
SELECT idem_relay_sweep();
BEGIN;
SELECT idem_relay_sweep();
ROLLBACK;

-- settings of the relay do not turn it on
SHOW idem.databases;
SHOW idem.kafka_brokers;
SELECT count(*) AS workers FROM pg_stat_activity WHERE backend_type = 'idem relay';

-- events are kept for a relay to come
BEGIN;
SELECT outbox_emit('status', 'k', 't', '{"n": 1}') IS NOT NULL AS emitted;
INSERT INTO idem.outbox (topic) VALUES ('status');
COMMIT;
SELECT count(*) AS waiting FROM idem.outbox WHERE topic = 'status' AND published_at IS NULL;
SELECT state FROM idem.relay_status;
DELETE FROM idem.outbox WHERE topic = 'status';

-- for those with a right to it only
CREATE ROLE regress_idem_nobody;
SET ROLE regress_idem_nobody;
SELECT * FROM idem.relay_status;
SELECT idem_relay_sweep();
RESET ROLE;
DROP ROLE regress_idem_nobody;
