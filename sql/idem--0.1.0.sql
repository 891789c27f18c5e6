/* sql/idem--0.1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idem CASCADE" to load this file. \quit

--
-- Schemas
--
-- Functions that applications call live in the schema given to CREATE
-- EXTENSION (usually public); tables, types, views and internals live in the
-- schema idem, which this script makes and owns.
--

DO $$
BEGIN
	IF '@extschema@' = 'idem' THEN
		RAISE EXCEPTION 'extension "idem" cannot put its functions into schema "idem"'
			USING ERRCODE = 'invalid_schema_name',
				HINT = 'The extension makes the schema "idem" for its tables. Choose another schema for its functions, for example CREATE EXTENSION idem SCHEMA public CASCADE.';
	END IF;
	IF EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'idem') THEN
		RAISE EXCEPTION 'schema "idem" already exists'
			USING ERRCODE = 'duplicate_schema',
				HINT = 'The extension makes the schema "idem" for its tables. Rename or drop the present one first.';
	END IF;
END
$$;

CREATE SCHEMA idem;
COMMENT ON SCHEMA idem IS 'tables, types, views and internals of the extension idem';

--
-- Types
--

-- What a claim answers: one row, ready to act on.  When run is true the caller
-- owns the record and does the work; when it is false, status, headers and
-- body are the HTTP answer to send.
CREATE TYPE idem.idem_claim AS (
	outcome			text,
	run				boolean,
	changed			boolean,
	attempt			bigint,
	resource_id		uuid,
	call_deadline	timestamptz,
	context			jsonb,
	retry_after		integer,
	expires_at		timestamptz,
	status			integer,
	headers			jsonb,
	body			bytea,
	body_kept		boolean
);
COMMENT ON TYPE idem.idem_claim IS 'result of idem_try_insert: whether to run, and if not, the HTTP answer to send';

COMMENT ON COLUMN idem.idem_claim.outcome IS 'STARTED, RESUMED, IN_PROGRESS, ALREADY_YOURS, MISMATCH, REPLAY, RESULT_GONE or UNKNOWN';
COMMENT ON COLUMN idem.idem_claim.run IS 'whether the caller owns the record and does the work';
COMMENT ON COLUMN idem.idem_claim.changed IS 'whether this call changed the record';
COMMENT ON COLUMN idem.idem_claim.attempt IS 'the fence, for idem_complete; only when run';
COMMENT ON COLUMN idem.idem_claim.resource_id IS 'id for the row the work creates, the same over all attempts; only when run';
COMMENT ON COLUMN idem.idem_claim.call_deadline IS 'no external call leaves after this; only when this claim marks a call';
COMMENT ON COLUMN idem.idem_claim.context IS 'what the first claim left for later attempts; only when run';
COMMENT ON COLUMN idem.idem_claim.retry_after IS 'seconds after which to ask again';
COMMENT ON COLUMN idem.idem_claim.expires_at IS 'when the key counts as never used; NULL: never, or not to be told';
COMMENT ON COLUMN idem.idem_claim.status IS 'HTTP status to send; only when not run';
COMMENT ON COLUMN idem.idem_claim.headers IS 'headers to send, [[name, value], ...]; only when not run';
COMMENT ON COLUMN idem.idem_claim.body IS 'body to send; only when not run';
COMMENT ON COLUMN idem.idem_claim.body_kept IS 'for REPLAY and RESULT_GONE: whether the response''s body is there';

-- What the functions of the record's owner answer.
CREATE TYPE idem.idem_http AS (
	status		integer,
	headers		jsonb,
	body		bytea,
	changed		boolean
);
COMMENT ON TYPE idem.idem_http IS 'an HTTP answer as it was stored, and whether this call stored it';
COMMENT ON COLUMN idem.idem_http.status IS 'HTTP status to send';
COMMENT ON COLUMN idem.idem_http.headers IS 'headers to send, [[name, value], ...]';
COMMENT ON COLUMN idem.idem_http.body IS 'body to send';
COMMENT ON COLUMN idem.idem_http.changed IS 'whether this call made the transition';

--
-- Canonical JSON and the request hash
--

-- idem_canonical(body) -> text
--
-- The canonical text of a JSON value: the layout of RFC 8785 (no white space,
-- member names in the order of their UTF-16 code units, shortest escapes) with
-- exact numbers: 1, 1.0, 1e0 and 100e-2 give 1, and two different decimals
-- never give one text.
--
-- Raises 54001 when the value is nested deeper than 1,000 levels, 54000 when the
-- text would be longer than 1 GB, and 22021 when a string of a database that is
-- not UTF-8 has no UTF-8 form.  Reads and writes nothing.
CREATE FUNCTION idem_canonical(body jsonb) RETURNS text
	AS 'MODULE_PATHNAME', 'idem_canonical'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_canonical(jsonb) IS 'canonical text of a JSON value (RFC 8785 layout, exact numbers)';

-- idem_hash(body) -> bytea
--
-- SHA-256 (32 bytes) of idem_canonical(body), as UTF-8 and without building
-- that text.  Raises what idem_canonical raises.  Reads and writes nothing.
CREATE FUNCTION idem_hash(body jsonb) RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_hash'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_hash(jsonb) IS 'SHA-256 of the canonical text of a JSON value';

-- idem_uuid7() -> uuid
--
-- A version 7 UUID (RFC 9562, section 5.7): 48 bits of Unix time in
-- milliseconds, 12 bits of the fraction (section 6.2, method 3), 62 random
-- bits.  Values made by one session always grow.
CREATE FUNCTION idem_uuid7() RETURNS uuid
	AS 'MODULE_PATHNAME', 'idem_uuid7'
	LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_uuid7() IS 'a new version 7 UUID (RFC 9562)';

--
-- Idempotency records
--

-- Attempt numbers come from a sequence, so that they only grow and never
-- repeat, not even when a claim is rolled back.
CREATE SEQUENCE idem.attempt AS bigint;
COMMENT ON SEQUENCE idem.attempt IS 'numbers of claims: the fence of idem_complete';

-- No index but the primary key: completing a record then is a HOT update,
-- which needs the room that the fillfactor leaves.
CREATE TABLE idem.idempotency (
	principal_id		text COLLATE "C" NOT NULL,
	idempotency_key		text COLLATE "C" NOT NULL,
	request_hash		bytea NOT NULL,
	operation			text,
	state				text COLLATE "C" NOT NULL,
	attempt				bigint NOT NULL,
	tries				integer NOT NULL DEFAULT 0,
	claim_xid			xid8 NOT NULL,
	call_xid			xid8,
	resource_id			uuid NOT NULL,
	created_at			timestamptz NOT NULL,
	claimed_at			timestamptz NOT NULL,
	lease_expires_at	timestamptz NOT NULL,
	call_started_at		timestamptz,
	call_deadline		timestamptz,
	dedup_until			timestamptz,
	context				jsonb,
	response_status		integer,
	response_headers	jsonb,
	response_body		bytea,
	response_size		bigint,
	response_digest		bytea,
	completed_at		timestamptz,
	response_expires_at	timestamptz,
	expires_at			timestamptz,
	PRIMARY KEY (principal_id, idempotency_key),
	CONSTRAINT idempotency_state CHECK (state IN ('IN_PROGRESS', 'UNKNOWN', 'COMPLETED')),
	CONSTRAINT idempotency_hash CHECK (length(request_hash) BETWEEN 16 AND 64),
	CONSTRAINT idempotency_completed CHECK ((state = 'COMPLETED') = (completed_at IS NOT NULL)),
	CONSTRAINT idempotency_response CHECK (state <> 'COMPLETED' OR (response_status IS NOT NULL
		AND response_headers IS NOT NULL AND response_size IS NOT NULL AND response_expires_at IS NOT NULL)),
	CONSTRAINT idempotency_call CHECK ((call_started_at IS NULL) = (call_deadline IS NULL)
		AND (call_started_at IS NULL) = (call_xid IS NULL))
) WITH (fillfactor = 50);

COMMENT ON TABLE idem.idempotency IS 'one record per (principal, key): who owns the work, and the answer once there is one';
COMMENT ON COLUMN idem.idempotency.principal_id IS 'whoever the key belongs to: tenant, user or API client, from the credentials';
COMMENT ON COLUMN idem.idempotency.idempotency_key IS 'the client''s Idempotency-Key';
COMMENT ON COLUMN idem.idempotency.request_hash IS 'hash of the request that claimed the key; another hash is a mismatch';
COMMENT ON COLUMN idem.idempotency.operation IS 'name of the operation, for people and sweepers';
COMMENT ON COLUMN idem.idempotency.state IS 'IN_PROGRESS, UNKNOWN or COMPLETED; the rest follows from times';
COMMENT ON COLUMN idem.idempotency.attempt IS 'number of the claim that owns the record: the fence';
COMMENT ON COLUMN idem.idempotency.tries IS 'how many earlier attempts ended without an answer';
COMMENT ON COLUMN idem.idempotency.claim_xid IS 'transaction of the claim';
COMMENT ON COLUMN idem.idempotency.call_xid IS 'transaction that marked the external call; completing in it is an error';
COMMENT ON COLUMN idem.idempotency.resource_id IS 'id for the row the work creates; the same over all attempts';
COMMENT ON COLUMN idem.idempotency.created_at IS 'first claim';
COMMENT ON COLUMN idem.idempotency.claimed_at IS 'claim of the present attempt';
COMMENT ON COLUMN idem.idempotency.lease_expires_at IS 'the claim counts as alive before this time';
COMMENT ON COLUMN idem.idempotency.call_started_at IS 'when the present attempt marked its external call';
COMMENT ON COLUMN idem.idempotency.call_deadline IS 'no call of the present attempt leaves after this time';
COMMENT ON COLUMN idem.idempotency.dedup_until IS 'the far side honours the key until then, counted from the first call; NULL: it does not';
COMMENT ON COLUMN idem.idempotency.context IS 'what a later attempt needs to go on: ids and references, never secrets';
COMMENT ON COLUMN idem.idempotency.response_status IS 'HTTP status of the stored response';
COMMENT ON COLUMN idem.idempotency.response_headers IS 'headers of the stored response: [[name, value], ...]';
COMMENT ON COLUMN idem.idempotency.response_body IS 'body of the stored response; NULL when it was over idem.max_response_bytes';
COMMENT ON COLUMN idem.idempotency.response_size IS 'bytes of the response body';
COMMENT ON COLUMN idem.idempotency.response_digest IS 'SHA-256 of a response body that was not kept';
COMMENT ON COLUMN idem.idempotency.completed_at IS 'when the response was stored';
COMMENT ON COLUMN idem.idempotency.response_expires_at IS 'the response is replayed before this time';
COMMENT ON COLUMN idem.idempotency.expires_at IS 'the key counts as never used from this time on; NULL: never';

-- idem_try_insert(...) -> idem.idem_claim, one row
--
-- Claims (principal_id, idempotency_key) for a request, or says why not.  Call
-- it as SELECT * FROM idem_try_insert(...).
--
--	principal_id	whoever the key belongs to, 1 to 255 characters, no control characters
--	idempotency_key	the client's key, 1 to 255 characters, no control characters
--	request_hash	16 to 64 bytes that stand for the request, such as idem_hash(body)
--	operation		a name for people and sweepers
--	lease			how long the claim counts as alive, > 0; NULL: idem.lease
--	call_timeout	marks an external call: it starts now and none leaves after
--					now + call_timeout (> 0); the lease then ends idem.call_margin
--					after that at the earliest.  NULL: no external call is marked
--	dedup_window	how long the far side honours the same key, counted from the
--					first call; 0: it does not, and the call can't be repeated
--	context			what a later attempt needs to go on; never secrets
--
-- Outcomes:
--	STARTED			run: the caller owns a new record
--	RESUMED			run: the caller owns a record whose owner's lease is over;
--					same resource_id and context, new attempt
--	IN_PROGRESS		another's claim is alive, or being made at this moment: 409
--	ALREADY_YOURS	claimed earlier in this transaction: 409
--	MISMATCH		the key was used with another request: 409, says nothing of it
--	REPLAY			the stored response, with Idempotent-Replayed: true
--	RESULT_GONE		answered long ago, the response is no longer kept: 409
--	UNKNOWN			nobody can know whether the work was done: 202
--
-- attempt, resource_id and context are given only when run; status, headers
-- and body only when not.  Error bodies are problem documents (RFC 9457).
--
-- Never waits for another transaction.  A claim (STARTED, RESUMED, or UNKNOWN
-- with changed) is on disk when the transaction has committed, whatever
-- synchronous_commit says.  The other outcomes write nothing and work in a
-- read-only transaction.
--
-- Raises 22004 (NULL principal, key or hash), 22023 (value out of its limits),
-- 25006 (read-only transaction, and the claim would have to write), 40001
-- (REPEATABLE READ or SERIALIZABLE: run the transaction again).
CREATE FUNCTION idem_try_insert(
	principal_id text,
	idempotency_key text,
	request_hash bytea,
	operation text DEFAULT NULL,
	lease interval DEFAULT NULL,
	call_timeout interval DEFAULT NULL,
	dedup_window interval DEFAULT '0',
	context jsonb DEFAULT NULL)
	RETURNS idem.idem_claim
	AS 'MODULE_PATHNAME', 'idem_try_insert'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_try_insert(text, text, bytea, text, interval, interval, interval, jsonb)
	IS 'claims an idempotency key, or gives the answer to send instead';

-- idem_complete(principal_id, idempotency_key, attempt, status, body, headers)
--	-> idem.idem_http, one row
--
-- Stores the response of an attempt, in the transaction that also writes the
-- business rows and events.  Gives back what to send.
--
--	attempt		as idem_try_insert gave it: the fence
--	status		HTTP status, 100 to 599; declines are stored like successes
--	body		the exact bytes of the response; text and jsonb are stored as UTF-8
--	headers		[[name, value], ...], without control characters
--
-- changed is true when this call stored the response, and false when the same
-- attempt had stored exactly this response before.  Everything else is an
-- error, so that the rows of an owner that lost its claim roll back with it.
-- A body over idem.max_response_bytes completes the record all the same; its
-- size and digest are kept instead of it.
--
-- Waits for a concurrent change of the same record (lock_timeout applies).  On
-- disk when the transaction has committed, whatever synchronous_commit says.
--
-- Raises ID001 (the attempt does not own the record: it was taken over, or
-- there is none), ID002 (already completed with another response, or the
-- response has expired), ID003 (the external call was marked in this very
-- transaction), 22004, 22023, 40001.
CREATE FUNCTION idem_complete(
	principal_id text,
	idempotency_key text,
	attempt bigint,
	status integer,
	body bytea,
	headers jsonb DEFAULT '[["content-type", "application/json"]]')
	RETURNS idem.idem_http
	AS 'MODULE_PATHNAME', 'idem_complete'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_complete(text, text, bigint, integer, bytea, jsonb)
	IS 'stores the response of an attempt, and gives back what to send';

CREATE FUNCTION idem_complete(
	principal_id text,
	idempotency_key text,
	attempt bigint,
	status integer,
	body text,
	headers jsonb DEFAULT '[["content-type", "application/json"]]')
	RETURNS idem.idem_http
	LANGUAGE SQL VOLATILE PARALLEL UNSAFE
	RETURN idem_complete(principal_id, idempotency_key, attempt, status, convert_to(body, 'UTF8'), headers);
COMMENT ON FUNCTION idem_complete(text, text, bigint, integer, text, jsonb)
	IS 'stores the response of an attempt, and gives back what to send';

CREATE FUNCTION idem_complete(
	principal_id text,
	idempotency_key text,
	attempt bigint,
	status integer,
	body jsonb,
	headers jsonb DEFAULT '[["content-type", "application/json"]]')
	RETURNS idem.idem_http
	LANGUAGE SQL VOLATILE PARALLEL UNSAFE
	RETURN idem_complete(principal_id, idempotency_key, attempt, status, convert_to(body::text, 'UTF8'), headers);
COMMENT ON FUNCTION idem_complete(text, text, bigint, integer, jsonb, jsonb)
	IS 'stores the response of an attempt, and gives back what to send';

--
-- Outbox
--
-- A ring of 64 leaves: the slot is the UTC day modulo 64 at the time of the
-- insert.  No leaf is ever made or dropped at run time, so an insert never
-- fails for want of one, and pg_dump knows them all.
--

-- idem.outbox_slot() -> smallint
--
-- The slot of the ring that rows written now go to, by the clock.
CREATE FUNCTION idem.outbox_slot() RETURNS smallint
	AS 'MODULE_PATHNAME', 'outbox_slot'
	LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem.outbox_slot() IS 'leaf of the outbox for rows written now: UTC day modulo 64';

-- idem.outbox_note(seq, slot, published_at, parked_at) -> true
--
-- Stands in a CHECK of the outbox, so that it sees every row however it was
-- written (INSERT, COPY, logical replication, a reset by hand).  It remembers
-- the lowest unpublished seq of each leaf until the transaction commits, when
-- the relay is told.  Never refuses a row.
CREATE FUNCTION idem.outbox_note(seq bigint, slot smallint, published_at timestamptz, parked_at timestamptz)
	RETURNS boolean
	AS 'MODULE_PATHNAME', 'outbox_note'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.outbox_note(bigint, smallint, timestamptz, timestamptz)
	IS 'tells the relay of an unpublished row when its transaction commits';

-- idem.kafka_topic_valid(topic) -> boolean
--
-- Whether a topic name is one that Kafka takes: 1 to 249 of a-z, A-Z, 0-9,
-- dot, underscore and hyphen, and neither "." nor "..".
CREATE FUNCTION idem.kafka_topic_valid(topic text) RETURNS boolean
	AS 'MODULE_PATHNAME', 'kafka_topic_valid'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem.kafka_topic_valid(text) IS 'whether Kafka takes this topic name';

-- idem.headers_valid(headers) -> boolean
--
-- Whether headers have the form [[name, value], ...] with names of 1 character
-- or more and values that are strings or null.
CREATE FUNCTION idem.headers_valid(headers jsonb) RETURNS boolean
	AS 'MODULE_PATHNAME', 'headers_valid'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem.headers_valid(jsonb) IS 'whether headers have the form [[name, value or null], ...]';

CREATE SEQUENCE idem.outbox_seq AS bigint;
COMMENT ON SEQUENCE idem.outbox_seq IS 'order of the outbox: rows of one key go to Kafka by it';

CREATE TABLE idem.outbox (
	seq				bigint NOT NULL DEFAULT nextval('idem.outbox_seq'),
	event_id		uuid NOT NULL DEFAULT idem_uuid7(),
	topic			text NOT NULL,
	partition_key	text,
	aggregate_type	text,
	aggregate_id	text,
	event_type		text,
	payload			jsonb,
	payload_bytes	bytea,
	headers			jsonb,
	created_at		timestamptz NOT NULL DEFAULT clock_timestamp(),
	slot			smallint NOT NULL DEFAULT idem.outbox_slot(),
	published_at	timestamptz,
	kafka_partition	integer,
	kafka_offset	bigint,
	attempts		integer NOT NULL DEFAULT 0,
	parked_at		timestamptz,
	last_error		text,
	PRIMARY KEY (seq, slot),
	CONSTRAINT outbox_slot CHECK (slot BETWEEN 0 AND 63),
	CONSTRAINT outbox_topic CHECK (idem.kafka_topic_valid(topic)),
	CONSTRAINT outbox_headers CHECK (idem.headers_valid(headers)),
	CONSTRAINT outbox_payload CHECK (payload IS NULL OR payload_bytes IS NULL),
	CONSTRAINT outbox_noted CHECK (idem.outbox_note(seq, slot, published_at, parked_at))
) PARTITION BY LIST (slot);

-- No index names a column that a mark sets, neither as a key nor in its
-- predicate: marks then are HOT updates.
CREATE INDEX outbox_event_id ON idem.outbox (event_id);
CREATE INDEX outbox_parked ON idem.outbox (parked_at) WHERE parked_at IS NOT NULL;

COMMENT ON TABLE idem.outbox IS 'events to publish: written with the business rows, sent to Kafka by the relay';
COMMENT ON COLUMN idem.outbox.seq IS 'order of publishing within (topic, partition_key)';
COMMENT ON COLUMN idem.outbox.event_id IS 'id of the event: fixed here, the same each time the event is sent';
COMMENT ON COLUMN idem.outbox.topic IS 'Kafka topic';
COMMENT ON COLUMN idem.outbox.partition_key IS 'key of the Kafka record; rows of one key keep their order; NULL: no order';
COMMENT ON COLUMN idem.outbox.aggregate_type IS 'kind of the thing the event is about';
COMMENT ON COLUMN idem.outbox.aggregate_id IS 'id of the thing the event is about; sent as ce_subject';
COMMENT ON COLUMN idem.outbox.event_type IS 'what happened; sent as ce_type';
COMMENT ON COLUMN idem.outbox.payload IS 'value of the Kafka record, sent as the text of the jsonb; with payload_bytes NULL as well: a tombstone';
COMMENT ON COLUMN idem.outbox.payload_bytes IS 'value of the Kafka record, sent byte for byte';
COMMENT ON COLUMN idem.outbox.headers IS 'own headers of the Kafka record: [[name, value or null], ...]';
COMMENT ON COLUMN idem.outbox.created_at IS 'when the event was written; timestamp of the Kafka record and ce_time';
COMMENT ON COLUMN idem.outbox.slot IS 'leaf of the ring: UTC day modulo 64 when the row was written';
COMMENT ON COLUMN idem.outbox.published_at IS 'mark: set after Kafka''s acknowledgement; NULL: still to be published';
COMMENT ON COLUMN idem.outbox.kafka_partition IS 'partition that Kafka stored the record in';
COMMENT ON COLUMN idem.outbox.kafka_offset IS 'offset of the record in its partition';
COMMENT ON COLUMN idem.outbox.attempts IS 'how often Kafka refused this row by itself';
COMMENT ON COLUMN idem.outbox.parked_at IS 'when the row was taken out of the way; NULL: not parked';
COMMENT ON COLUMN idem.outbox.last_error IS 'why the row was refused';
COMMENT ON INDEX idem.outbox_event_id IS 'finds an event by its id';
COMMENT ON INDEX idem.outbox_parked IS 'finds parked rows';

-- The facts that may be emitted once only; written by outbox_emit(once_key).
CREATE TABLE idem.outbox_once (
	once_key	text COLLATE "C" PRIMARY KEY,
	event_id	uuid NOT NULL,
	digest		bytea NOT NULL,
	expires_at	timestamptz NOT NULL
);
COMMENT ON TABLE idem.outbox_once IS 'facts that were emitted under a once_key';
COMMENT ON COLUMN idem.outbox_once.once_key IS 'name of the fact';
COMMENT ON COLUMN idem.outbox_once.event_id IS 'the event that stated it first';
COMMENT ON COLUMN idem.outbox_once.digest IS 'SHA-256 of what the event said';
COMMENT ON COLUMN idem.outbox_once.expires_at IS 'the fact may be stated anew from this time on';

-- outbox_emit(...) -> uuid, the event id
--
-- Writes an event in the caller's transaction; the relay publishes it after
-- the commit, at least once, always under this id.
--
--	topic			Kafka topic: 1 to 249 of a-z A-Z 0-9 . _ -
--	key				key of the Kafka record: events of one key keep their order
--	event_type		what happened, sent as ce_type
--	payload			value of the record, sent as the text of the jsonb
--	headers			own headers: [[name, value or null], ...]
--	once_key		name of a fact that may be stated once, 1 to 255 characters:
--					a repeat with the same content writes nothing and gives the
--					first event's id
--	aggregate_type	kind of the thing the event is about
--	aggregate_id	id of the thing the event is about, sent as ce_subject
--	payload_bytes	value of the record, sent untouched; not with payload.
--					Both NULL: a tombstone
--
-- With a once_key it waits for a concurrent emission of the same fact to commit
-- or roll back.
--
-- Raises 22004 (NULL topic), 22023 (value out of its limits), 22P02 (from the
-- type jsonb: payload is not JSON), ID005 (the once_key was used with other
-- content).
CREATE FUNCTION outbox_emit(
	topic text,
	key text,
	event_type text,
	payload jsonb,
	headers jsonb DEFAULT NULL,
	once_key text DEFAULT NULL,
	aggregate_type text DEFAULT NULL,
	aggregate_id text DEFAULT NULL,
	payload_bytes bytea DEFAULT NULL)
	RETURNS uuid
	AS 'MODULE_PATHNAME', 'outbox_emit'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION outbox_emit(text, text, text, jsonb, jsonb, text, text, text, bytea)
	IS 'writes an event in the caller''s transaction, for the relay to publish';

--
-- Inbox
--
-- A ring of 64 leaves by the day inside a version 7 UUID, and one leaf (64) for
-- ids without a time.  The slot is a function of the event id alone, so an id
-- is unique over all leaves.
--

-- idem.inbox_slot(event_id) -> smallint
--
-- The leaf of the inbox that remembers this event id: the UTC day inside a
-- version 7 UUID (RFC 9562) modulo 64, or 64 for every other id.
CREATE FUNCTION idem.inbox_slot(event_id uuid) RETURNS smallint
	AS 'MODULE_PATHNAME', 'inbox_slot'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem.inbox_slot(uuid) IS 'leaf of the inbox for an event id: day of a version 7 UUID modulo 64, else 64';

CREATE TABLE idem.inbox (
	consumer	text COLLATE "C" NOT NULL,
	event_id	uuid NOT NULL,
	slot		smallint NOT NULL,
	applied_at	timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (consumer, event_id, slot),
	CONSTRAINT inbox_slot CHECK (slot = idem.inbox_slot(event_id))
) PARTITION BY LIST (slot);
COMMENT ON TABLE idem.inbox IS 'events that a consumer has applied';
COMMENT ON COLUMN idem.inbox.consumer IS 'name of the subscriber';
COMMENT ON COLUMN idem.inbox.event_id IS 'id of the applied event (ce_id)';
COMMENT ON COLUMN idem.inbox.slot IS 'leaf of the ring, a function of the event id alone';
COMMENT ON COLUMN idem.inbox.applied_at IS 'when it was applied';

-- inbox_apply(consumer, event_id) -> boolean
--
-- True the first time that this consumer sees this event, false for a repeat.
-- Call it in the transaction of the effect, and skip the effect when it says
-- false: a rollback forgets both.
--
--	consumer	name of the subscriber, 1 to 255 characters, no control characters
--	event_id	id of the event
--
-- Waits for a concurrent delivery of the same event to commit (then false) or
-- roll back (then true); lock_timeout applies.  No savepoint, and no exception
-- for a repeat.
--
-- Raises 22004 (NULL), 22023 (consumer out of its limits), 40001 (REPEATABLE
-- READ or SERIALIZABLE: the other delivery committed; run the transaction
-- again), 55P03 (lock_timeout).
CREATE FUNCTION inbox_apply(consumer text, event_id uuid) RETURNS boolean
	AS 'MODULE_PATHNAME', 'inbox_apply'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION inbox_apply(text, uuid) IS 'true the first time a consumer sees an event, false for a repeat';

--
-- The leaves, and what pg_dump takes along
--

DO $$
DECLARE
	leaf text;
BEGIN
	FOR slot IN 0 .. 63 LOOP
		leaf := 'outbox_' || lpad(slot::text, 2, '0');
		EXECUTE format('CREATE TABLE idem.%I PARTITION OF idem.outbox FOR VALUES IN (%s) WITH (fillfactor = 46)', leaf, slot);
		EXECUTE format('COMMENT ON TABLE idem.%I IS %L', leaf, 'leaf of idem.outbox: days with number modulo 64 = ' || slot);
		PERFORM pg_catalog.pg_extension_config_dump(('idem.' || leaf)::regclass, '');
	END LOOP;
	FOR slot IN 0 .. 64 LOOP
		leaf := 'inbox_' || lpad(slot::text, 2, '0');
		EXECUTE format('CREATE TABLE idem.%I PARTITION OF idem.inbox FOR VALUES IN (%s)', leaf, slot);
		EXECUTE format('COMMENT ON TABLE idem.%I IS %L', leaf,
			CASE slot WHEN 64 THEN 'leaf of idem.inbox: event ids without a time'
			ELSE 'leaf of idem.inbox: days with number modulo 64 = ' || slot END);
		PERFORM pg_catalog.pg_extension_config_dump(('idem.' || leaf)::regclass, '');
	END LOOP;
END
$$;

SELECT pg_catalog.pg_extension_config_dump('idem.attempt', '');
SELECT pg_catalog.pg_extension_config_dump('idem.idempotency', '');
SELECT pg_catalog.pg_extension_config_dump('idem.outbox_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.outbox_once', '');

--
-- Relay
--

-- idem.relay_state() -> one row about the relay of this database
CREATE FUNCTION idem.relay_state(
	OUT pid integer,
	OUT state text,
	OUT hint text,
	OUT brokers text,
	OUT librdkafka text,
	OUT started_at timestamptz,
	OUT in_flight bigint,
	OUT published bigint,
	OUT failed bigint,
	OUT last_published_at timestamptz,
	OUT last_error text,
	OUT last_error_at timestamptz)
	RETURNS record
	AS 'MODULE_PATHNAME', 'relay_state'
	LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem.relay_state() IS 'what the relay of this database is doing; use the view idem.relay_status';

CREATE VIEW idem.relay_status AS
	SELECT pg_catalog.current_database() AS database, r.*
	FROM idem.relay_state() AS r;
COMMENT ON VIEW idem.relay_status IS 'the relay of this database: one row, also when none runs';
COMMENT ON COLUMN idem.relay_status.database IS 'this database';
COMMENT ON COLUMN idem.relay_status.pid IS 'process id of the worker; NULL: none runs';
COMMENT ON COLUMN idem.relay_status.state IS 'not preloaded, not enabled, not running, no brokers, no extension, waiting for broker, retrying or running';
COMMENT ON COLUMN idem.relay_status.hint IS 'what to do about the state';
COMMENT ON COLUMN idem.relay_status.brokers IS 'idem.kafka_brokers as the worker uses it';
COMMENT ON COLUMN idem.relay_status.librdkafka IS 'version of the client library that the worker runs';
COMMENT ON COLUMN idem.relay_status.started_at IS 'start of the worker';
COMMENT ON COLUMN idem.relay_status.in_flight IS 'rows handed to Kafka and not yet marked';
COMMENT ON COLUMN idem.relay_status.published IS 'rows marked since the server started';
COMMENT ON COLUMN idem.relay_status.failed IS 'delivery reports with an error since the server started; those rows are sent again';
COMMENT ON COLUMN idem.relay_status.last_published_at IS 'last mark';
COMMENT ON COLUMN idem.relay_status.last_error IS 'last error of the worker or of Kafka';
COMMENT ON COLUMN idem.relay_status.last_error_at IS 'when it happened';

-- idem_relay_sweep() -> boolean
--
-- Asks the relay of this database, once this transaction has committed, to read
-- the whole outbox again for unpublished rows.  It does so by itself whenever
-- it starts; this is for rows that became visible in a way it can't notice.
-- True when a relay is there to hear it.
CREATE FUNCTION idem_relay_sweep() RETURNS boolean
	AS 'MODULE_PATHNAME', 'idem_relay_sweep'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_relay_sweep() IS 'asks the relay to read the whole outbox for unpublished rows';

-- A relay that ran before the extension was there starts to work now.
SELECT idem_relay_sweep();

--
-- Privileges: nothing to PUBLIC
--

DO $$
DECLARE
	member regprocedure;
BEGIN
	FOR member IN
		SELECT d.objid::regprocedure
		FROM pg_catalog.pg_depend AS d
		JOIN pg_catalog.pg_extension AS e ON e.oid = d.refobjid
		WHERE e.extname = 'idem' AND d.refclassid = 'pg_catalog.pg_extension'::regclass
			AND d.classid = 'pg_catalog.pg_proc'::regclass AND d.deptype = 'e'
	LOOP
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', member);
	END LOOP;
END
$$;
