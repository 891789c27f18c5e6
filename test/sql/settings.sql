--
-- Settings: defaults, and what is refused
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;
LOAD 'idem';

-- defaults, and who may set them when
SELECT name, setting, unit, context, vartype, short_desc <> '' AS described FROM pg_settings WHERE name LIKE 'idem.%' ORDER BY name COLLATE "C";
SHOW idem.databases;
SHOW idem.kafka_brokers;
SHOW idem.lease;
SHOW idem.call_margin;
SHOW idem.call_grace;
SHOW idem.mismatch_status;
SHOW idem.max_tries;
SHOW idem.max_response_bytes;
SHOW idem.response_retention;
SHOW idem.record_retention;

-- values with units
SET idem.lease = '2 min';
SHOW idem.lease;
SET idem.lease = '1500 ms';
SHOW idem.lease;
SET idem.response_retention = '90 d';
SHOW idem.response_retention;
SET idem.max_response_bytes = '64 kB';
SHOW idem.max_response_bytes;
RESET idem.lease;
RESET idem.response_retention;
RESET idem.max_response_bytes;

-- refused
SET idem.lease = 0;
\echo :LAST_ERROR_SQLSTATE
SET idem.lease = '-1 s';
SET idem.lease = 'long';
SET idem.lease = '5 apples';
SET idem.call_margin = '-1 s';
SET idem.call_grace = '-1 s';
SET idem.mismatch_status = 400;
SET idem.mismatch_status = 410;
SET idem.max_tries = 0;
SET idem.max_response_bytes = -1;
SET idem.response_retention = 0;
SET idem.record_retention = '-1 d';
SHOW idem.lease;
-- what the relay reads is not for a session to change
SET idem.kafka_brokers = '127.0.0.1:9092';
\echo :LAST_ERROR_SQLSTATE
-- and is checked before it is written
ALTER SYSTEM SET idem.kafka_brokers = 'kafka 1:9092';
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET idem.kafka_brokers = '127.0.0.1:';
ALTER SYSTEM SET idem.kafka_brokers = ':9092';
ALTER SYSTEM SET idem.kafka_brokers = '127.0.0.1:port';
ALTER SYSTEM SET idem.kafka_brokers = '127.0.0.1:9092,,127.0.0.1:9093';
ALTER SYSTEM SET idem.kafka_brokers = '127.0.0.1:65536';
ALTER SYSTEM SET idem.kafka_brokers = '127.0.0.1:0';
ALTER SYSTEM SET idem.databases = 'a, , b';
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET idem.databases = '"open';
SELECT count(*) AS written FROM pg_file_settings WHERE name LIKE 'idem.%';

ALTER SYSTEM RESET idem.kafka_brokers;
ALTER SYSTEM RESET idem.databases;

-- a setting that is none
SET idem.leese = '30 s';
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET idem.kafka_broker = '127.0.0.1:9092';
SHOW idem.leese;

-- what decides about other people's keys is for superusers
CREATE ROLE regress_idem_user;
SET ROLE regress_idem_user;
SET idem.lease = '1 min';
SET idem.call_margin = 0;
SET idem.call_grace = 0;
SET idem.mismatch_status = 422;
SET idem.max_tries = 1000;
SET idem.max_response_bytes = 0;
SET idem.response_retention = '1 min';
SET idem.record_retention = '1 min';
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
RESET idem.lease;
DROP ROLE regress_idem_user;
