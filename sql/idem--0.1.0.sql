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

-- idem_canonical(body, mode) -> text
--
-- The canonical text of a JSON value: the layout of RFC 8785 (no white space,
-- member names in the order of their UTF-16 code units, shortest escapes) with
-- exact numbers: 1, 1.0, 1e0 and 100e-2 give 1, and two different decimals
-- never give one text.
--
--	body	a JSON value, or JSON text, which is read strictly
--	mode	exact; or jcs: the same text, but an error for a number that RFC 8785
--			might write in another way, for texts that others recompute
--
-- Raises 22023 for another mode, 22003 for a number that mode jcs refuses, 54001
-- when the value is nested deeper than 1,000 levels, 54000 when the text would
-- be longer than 1 GB, and 22021 when a string of a database that is not UTF-8
-- has no UTF-8 form.  Reads and writes nothing.
CREATE FUNCTION idem_canonical(body jsonb, mode text DEFAULT 'exact') RETURNS text
	AS 'MODULE_PATHNAME', 'idem_canonical'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_canonical(jsonb, text) IS 'canonical text of a JSON value (RFC 8785 layout, exact numbers)';

-- Of JSON text moreover raises, each with the byte where it is: 22P02 for what
-- is not JSON (RFC 8259), has a byte-order mark or a surrogate without its other
-- half; 22P05 for \u0000 and for a character that the database's encoding lacks;
-- 22021 for invalid UTF-8; 22030 for a name that an object has twice; 22003 for a
-- number that jsonb can't hold; 54000 for more than 16,777,216 members.  Bytes are
-- counted from 1, in the text as UTF-8.
CREATE FUNCTION idem_canonical(body text, mode text DEFAULT 'exact') RETURNS text
	AS 'MODULE_PATHNAME', 'idem_canonical_text'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_canonical(text, text) IS 'canonical text of JSON text, read strictly (RFC 8785 layout, exact numbers)';

-- idem_hash(body, mode) -> bytea
--
-- SHA-256 (32 bytes) of idem_canonical(body, mode), as UTF-8 and without
-- building that text.  Raises what idem_canonical raises, but for a text that is
-- too long or has a character that the database's encoding lacks.  Reads and
-- writes nothing.
CREATE FUNCTION idem_hash(body jsonb, mode text DEFAULT 'exact') RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_hash'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_hash(jsonb, text) IS 'SHA-256 of the canonical text of a JSON value';

CREATE FUNCTION idem_hash(body text, mode text DEFAULT 'exact') RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_hash_text'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_hash(text, text) IS 'SHA-256 of the canonical text of JSON text, read strictly';

-- idem_request_hash(method, path, body, include, exclude, optional, mode) -> bytea
--
-- 32 bytes that stand for a request: SHA-256 of the canonical text of
--
--	["idem.request",1,mode,method,path,include,exclude,selected]
--
-- where selected is the part of the body that counts.  The lists are sorted as
-- names are and without repeats, null where they are NULL.  Without a body the
-- last element is missing.  Whatever differs in these differs in the text.
--
--	method, path	as the request has them; neither is changed in any way
--	body			jsonb, or text as it was received, which is read strictly; NULL:
--					no body, which is not the body null
--	include			which parts of the body count; NULL: all of it
--	exclude			which parts don't, applied last; NULL: none
--	optional		pointers of include, written in the same way, that may hit
--					nothing; NULL: none
--	mode			exact or jcs, as for idem_canonical
--
-- The lists hold JSON pointers (RFC 6901), in which * stands for all members or
-- all elements, or plain names of members at the top level; '' is the whole body.
-- docs/request-hash.md has the rules and a table of cases.
--
-- Raises 22004 (method, path, mode or a pointer is NULL), 22023 (no such mode, a
-- malformed pointer, optional names what include does not), 22035 (an include
-- hits nothing, or nothing is left), 54000 (a text of more than 256 MB to select
-- from), and what idem_hash raises.  Reads and writes nothing.
CREATE FUNCTION idem_request_hash(
	method text,
	path text,
	body jsonb,
	include text[] DEFAULT NULL,
	exclude text[] DEFAULT NULL,
	optional text[] DEFAULT NULL,
	mode text DEFAULT 'exact')
	RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_request_hash'
	LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_request_hash(text, text, jsonb, text[], text[], text[], text)
	IS '32 bytes that stand for a request: method, path and what counts of its body';

-- The body has a default in one of the two forms only, so that a call without it
-- is not ambiguous.
CREATE FUNCTION idem_request_hash(
	method text,
	path text,
	body text DEFAULT NULL,
	include text[] DEFAULT NULL,
	exclude text[] DEFAULT NULL,
	optional text[] DEFAULT NULL,
	mode text DEFAULT 'exact')
	RETURNS bytea
	AS 'MODULE_PATHNAME', 'idem_request_hash_text'
	LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_request_hash(text, text, text, text[], text[], text[], text)
	IS '32 bytes that stand for a request: method, path and what counts of its body, JSON text';

-- Secrets of keyed hashes.  Only idem.hash_hmac reads them.  pg_dump takes none
-- along.  Row security without a policy keeps them from members of
-- pg_read_all_data, and no statistics, which would hold samples, are gathered.
CREATE TABLE idem.hash_key (
	key_id		text COLLATE "C" PRIMARY KEY,
	secret		bytea NOT NULL,
	created_at	timestamptz NOT NULL
);
ALTER TABLE idem.hash_key ALTER COLUMN secret SET STATISTICS 0;
ALTER TABLE idem.hash_key ENABLE ROW LEVEL SECURITY;
COMMENT ON TABLE idem.hash_key IS 'secrets of keyed hashes: read by idem.hash_hmac alone, not dumped';
COMMENT ON COLUMN idem.hash_key.key_id IS 'name that idem_request_hmac is given';
COMMENT ON COLUMN idem.hash_key.secret IS '32 to 1,024 bytes, not to be seen';
COMMENT ON COLUMN idem.hash_key.created_at IS 'when the key was added';

CREATE VIEW idem.hash_keys AS
	SELECT key_id, created_at FROM idem.hash_key;
COMMENT ON VIEW idem.hash_keys IS 'which keys of keyed hashes there are, without their secrets';
COMMENT ON COLUMN idem.hash_keys.key_id IS 'name that idem_request_hmac is given';
COMMENT ON COLUMN idem.hash_keys.created_at IS 'when the key was added';

-- idem_hash_key_add(key_id) -> void
--
-- Makes a key for idem_request_hmac, with a secret of 32 random bytes that nobody
-- sees.  It is there for others when the transaction has committed.
--
--	key_id	a name, 1 to 255 characters, no control characters
--
-- Raises 22004, 22023, 25006, 42710 (there is one of this name: a secret is never
-- replaced).
CREATE FUNCTION idem_hash_key_add(key_id text) RETURNS void
	AS 'MODULE_PATHNAME', 'idem_hash_key_add'
	LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_hash_key_add(text) IS 'makes a key of keyed hashes, with a random secret';

-- idem_hash_key_import(key_id, secret) -> void
--
-- The same with a secret that exists elsewhere.  What is written in a statement,
-- or given as its parameter, may be logged: take it from a file of the server, by
-- pg_read_binary_file, and see the README for copying keys between servers.
-- idem_grant gives this function to nobody.
--
--	key_id	a name, 1 to 255 characters, no control characters
--	secret	32 to 1,024 bytes
--
-- Raises 22004, 22023, 25006, 42710.
CREATE FUNCTION idem_hash_key_import(key_id text, secret bytea) RETURNS void
	AS 'MODULE_PATHNAME', 'idem_hash_key_import'
	LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_hash_key_import(text, bytea) IS 'makes a key of keyed hashes, with a secret that exists elsewhere';

-- idem_hash_key_retire(key_id) -> void
--
-- Deletes a key.  Hashes can't be made with it any more: retire it when the
-- records that were claimed with it have expired.
--
-- Raises 22004, 22023, 25006, 42704 (no such key).
CREATE FUNCTION idem_hash_key_retire(key_id text) RETURNS void
	AS 'MODULE_PATHNAME', 'idem_hash_key_retire'
	LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_hash_key_retire(text) IS 'deletes a key of keyed hashes';

-- idem.hash_hmac(key_id, message) -> bytea
--
-- HMAC-SHA-256 (RFC 2104; 32 bytes) of a message with the secret of a key; NULL
-- for a NULL message.  What idem_request_hmac is made of.
--
-- Raises 22004, 22023, 42704 (no such key).
CREATE FUNCTION idem.hash_hmac(key_id text, message bytea) RETURNS bytea
	AS 'MODULE_PATHNAME', 'hash_hmac'
	LANGUAGE C STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem.hash_hmac(text, bytea) IS 'HMAC-SHA-256 of a message with the secret of a key';

-- idem_request_hmac(key_id, method, path, body, include, exclude, optional, mode)
-- -> bytea
--
-- A keyed hash of a request, 32 bytes: HMAC-SHA-256 over its idem_request_hash
-- with the secret of a key.  For bodies whose only secret is short, a card number
-- for example: from a plain hash it can be found by trying.
--
--	key_id	name of a key that idem_hash_key_add has made
--
-- The other arguments are those of idem_request_hash.  Raises what that raises,
-- and 42704 (no such key).  Reads idem.hash_key and writes nothing.
CREATE FUNCTION idem_request_hmac(
	key_id text,
	method text,
	path text,
	body jsonb,
	include text[] DEFAULT NULL,
	exclude text[] DEFAULT NULL,
	optional text[] DEFAULT NULL,
	mode text DEFAULT 'exact')
	RETURNS bytea
	LANGUAGE SQL STABLE PARALLEL SAFE
	RETURN idem.hash_hmac(key_id, idem_request_hash(method, path, body, include, exclude, optional, mode));
COMMENT ON FUNCTION idem_request_hmac(text, text, text, jsonb, text[], text[], text[], text)
	IS 'a keyed hash of a request: HMAC-SHA-256 over its idem_request_hash';

CREATE FUNCTION idem_request_hmac(
	key_id text,
	method text,
	path text,
	body text DEFAULT NULL,
	include text[] DEFAULT NULL,
	exclude text[] DEFAULT NULL,
	optional text[] DEFAULT NULL,
	mode text DEFAULT 'exact')
	RETURNS bytea
	LANGUAGE SQL STABLE PARALLEL SAFE
	RETURN idem.hash_hmac(key_id, idem_request_hash(method, path, body, include, exclude, optional, mode));
COMMENT ON FUNCTION idem_request_hmac(text, text, text, text, text[], text[], text[], text)
	IS 'a keyed hash of a request with a body of JSON text: HMAC-SHA-256 over its idem_request_hash';

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
	yielded				boolean NOT NULL DEFAULT false,
	context				jsonb,
	retention			interval,
	unknown_at			timestamptz,
	unknown_reason		text,
	external_ref		text,
	verdict				text COLLATE "C",
	response_status		integer,
	response_headers	jsonb,
	response_body		bytea,
	response_size		bigint,
	response_digest		bytea,
	completed_at		timestamptz,
	response_expires_at	timestamptz,
	expires_at			timestamptz,
	sweep_at			timestamptz NOT NULL DEFAULT '-infinity',
	PRIMARY KEY (principal_id, idempotency_key)
);

-- idem.record_valid(record) -> boolean
--
-- Whether a record is one that the functions can work with: a known state, a
-- hash of 16 to 64 bytes, a whole response when it is completed, a whole call
-- mark or none.  One CHECK that calls it: the server parses the expressions of
-- all CHECKs for each statement.
CREATE FUNCTION idem.record_valid(record idem.idempotency) RETURNS boolean
	AS 'MODULE_PATHNAME', 'record_valid'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem.record_valid(idem.idempotency) IS 'whether a record is one that the functions can work with';
ALTER TABLE idem.idempotency ADD CONSTRAINT idempotency_valid CHECK (idem.record_valid(idempotency));

-- For the sweeper of unfinished work and for operators: small, since settled
-- records leave it.
CREATE INDEX idempotency_unsettled ON idem.idempotency (lease_expires_at) WHERE state <> 'COMPLETED';
COMMENT ON INDEX idem.idempotency_unsettled IS 'finds records that are in progress or UNKNOWN';

-- For the sweep of what has expired: the time is set by the claim and is a lower
-- bound, so that completing a record leaves this index alone.
CREATE INDEX idempotency_sweep ON idem.idempotency (sweep_at);
COMMENT ON INDEX idem.idempotency_sweep IS 'finds records that may have something to sweep';

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
COMMENT ON COLUMN idem.idempotency.yielded IS 'the present attempt gave its lease up, and does not count towards idem.max_tries';
COMMENT ON COLUMN idem.idempotency.retention IS 'how long the key is remembered, if not idem.record_retention';
COMMENT ON COLUMN idem.idempotency.unknown_at IS 'when the record became UNKNOWN';
COMMENT ON COLUMN idem.idempotency.unknown_reason IS 'why, in the words of who marked it';
COMMENT ON COLUMN idem.idempotency.external_ref IS 'what the far side calls the operation';
COMMENT ON COLUMN idem.idempotency.verdict IS 'how an operator settled an UNKNOWN record: completed or not_applied';
COMMENT ON COLUMN idem.idempotency.context IS 'what a later attempt needs to go on: ids and references, never secrets';
COMMENT ON COLUMN idem.idempotency.response_status IS 'HTTP status of the stored response; of the interim answer while UNKNOWN';
COMMENT ON COLUMN idem.idempotency.response_headers IS 'headers of the stored response: [[name, value], ...]';
COMMENT ON COLUMN idem.idempotency.response_body IS 'body of the stored response; NULL when it was over idem.max_response_bytes';
COMMENT ON COLUMN idem.idempotency.response_size IS 'bytes of the response body';
COMMENT ON COLUMN idem.idempotency.response_digest IS 'SHA-256 of a response body that was not kept';
COMMENT ON COLUMN idem.idempotency.completed_at IS 'when the response was stored';
COMMENT ON COLUMN idem.idempotency.response_expires_at IS 'the response is replayed before this time';
COMMENT ON COLUMN idem.idempotency.sweep_at IS 'the sweep has nothing to do before this time';
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
--	also_accept		other hashes that stand for the same request, while the
--					definition of the hash or its secret is being changed
--	retention		how long the key is remembered from its completion, > 0; NULL:
--					idem.record_retention.  Its response goes no later
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
	context jsonb DEFAULT NULL,
	also_accept bytea[] DEFAULT '{}',
	retention interval DEFAULT NULL)
	RETURNS idem.idem_claim
	AS 'MODULE_PATHNAME', 'idem_try_insert'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_try_insert(text, text, bytea, text, interval, interval, interval, jsonb, bytea[], interval)
	IS 'claims an idempotency key, or gives the answer to send instead';

-- idem_try_insert_many(...) -> one row per line, in the order of the lines
--
-- Claims many keys of one principal in one call, as idem_try_insert would one by
-- one; the other arguments hold for all lines.  ord counts from 1.  A key that
-- stands twice is ALREADY_YOURS or MISMATCH the second time.
--
--	idempotency_keys	1 to 1,000 keys
--	request_hashes		as many hashes
--
-- Never waits, so two calls with the same keys in opposite order don't deadlock.
-- Each claim holds a lock until the end of the transaction: sessions that do
-- this at the same time need max_locks_per_transaction * (max_connections +
-- max_prepared_transactions) above 1,000 each, or the call fails with 53200.
--
-- Raises what idem_try_insert raises, and 22023 (lists of different lengths, or
-- too long), 53200.
CREATE FUNCTION idem_try_insert_many(
	principal_id text,
	idempotency_keys text[],
	request_hashes bytea[],
	operation text DEFAULT NULL,
	lease interval DEFAULT NULL,
	call_timeout interval DEFAULT NULL,
	dedup_window interval DEFAULT '0',
	context jsonb DEFAULT NULL,
	also_accept bytea[] DEFAULT '{}',
	retention interval DEFAULT NULL,
	OUT ord integer,
	OUT idempotency_key text,
	OUT outcome text,
	OUT run boolean,
	OUT changed boolean,
	OUT attempt bigint,
	OUT resource_id uuid,
	OUT call_deadline timestamptz,
	OUT claim_context jsonb,
	OUT retry_after integer,
	OUT expires_at timestamptz,
	OUT status integer,
	OUT headers jsonb,
	OUT body bytea,
	OUT body_kept boolean)
	RETURNS SETOF record
	AS 'MODULE_PATHNAME', 'idem_try_insert_many'
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1000;
COMMENT ON FUNCTION idem_try_insert_many(text, text[], bytea[], text, interval, interval, interval, jsonb, bytea[], interval)
	IS 'claims up to 1,000 idempotency keys of one principal in one call';

-- idem_before_call(principal_id, idempotency_key, attempt, timeout, dedup_window)
--	-> timestamptz, the call's deadline
--
-- Marks an external call of an attempt: it starts now, and none leaves after the
-- time that this gives.  For calls that idem_try_insert did not mark.  Commit
-- before calling.
--
--	timeout			how long the call may take, > 0
--	dedup_window	how long the far side honours the same key, counted from the
--					first call; 0: it does not
--
-- Renews the lease to idem.call_margin after the deadline at least.  On disk when
-- the transaction has committed, whatever synchronous_commit says.
--
-- Raises ID001 (the attempt does not own the record), ID002 (the record is
-- UNKNOWN or completed, its lease is over and it can't be resumed, or the call
-- would end after the far side has forgotten the key), 22004, 22023, 40001.
CREATE FUNCTION idem_before_call(
	principal_id text,
	idempotency_key text,
	attempt bigint,
	timeout interval,
	dedup_window interval DEFAULT '0')
	RETURNS timestamptz
	AS 'MODULE_PATHNAME', 'idem_before_call'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_before_call(text, text, bigint, interval, interval)
	IS 'marks an external call of an attempt, and gives the time after which it must not leave';

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

-- idem_mark_unknown(principal_id, idempotency_key, attempt, reason, external_ref,
--	status) -> idem.idem_http, one row
--
-- Says that nobody can know whether the work of an attempt was done: a call that
-- can't be repeated had no answer.  The record becomes UNKNOWN, is never run
-- again by itself and never expires; idem_resolve settles it, or a late answer of
-- the same attempt completes it.  Gives the answer to send, which later claims
-- hear as well.
--
--	reason			why, for operators; never secrets
--	external_ref	what the far side calls the operation
--	status			HTTP status of the interim answer, 100 to 599
--
-- changed is false when the record was UNKNOWN already.  On disk when the
-- transaction has committed, whatever synchronous_commit says.
--
-- Raises ID001 (the attempt does not own the record), ID002 (completed), 22004,
-- 22023, 40001.
CREATE FUNCTION idem_mark_unknown(
	principal_id text,
	idempotency_key text,
	attempt bigint,
	reason text DEFAULT NULL,
	external_ref text DEFAULT NULL,
	status integer DEFAULT 202)
	RETURNS idem.idem_http
	AS 'MODULE_PATHNAME', 'idem_mark_unknown'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_mark_unknown(text, text, bigint, text, text, integer)
	IS 'says that nobody can know whether the work of an attempt was done';

-- idem_yield(principal_id, idempotency_key, attempt) -> idem.idem_http, one row
--
-- Ends the lease of an attempt, and keeps the call mark: the next claim resumes
-- at once, or becomes UNKNOWN where the call can't be repeated.  For an attempt
-- that did nothing, or whose call had no answer from a far side that honours the
-- key.  Gives a 503 with retry-after to send.
--
-- changed is false when the lease was over already.  A yield does not count
-- towards idem.max_tries.
--
-- Raises ID001 (the attempt does not own the record), ID002 (the record is
-- UNKNOWN or completed, or its lease is over and it can't be resumed),
-- 22004, 40001.
CREATE FUNCTION idem_yield(
	principal_id text,
	idempotency_key text,
	attempt bigint)
	RETURNS idem.idem_http
	AS 'MODULE_PATHNAME', 'idem_yield'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_yield(text, text, bigint) IS 'ends the lease of an attempt, so that the next claim resumes at once';

-- idem_resolve(principal_id, idempotency_key, verdict, evidence, status, body,
--	headers) -> idem.idem_http, one row
--
-- An operator settles an UNKNOWN record: it becomes COMPLETED with the response
-- given, which the client's next retry gets.  It never runs again.  Write the
-- business rows and events in the same transaction, as the live path does.
--
--	verdict		'completed' (it was done) or 'not_applied' (it was not, and never
--				will be)
--	evidence	how that is known; kept in idem.resolution
--	status, body, headers	as for idem_complete
--
-- changed is false, and the stored response is given, when the record was settled
-- with the same verdict before.
--
-- Raises ID002 (not UNKNOWN; settled with the other verdict; or asked before
-- idem.call_grace after the call's deadline, when the call may still be on its
-- way), ID001 (there is no record), 22004, 22023, 40001.
CREATE FUNCTION idem_resolve(
	principal_id text,
	idempotency_key text,
	verdict text,
	evidence jsonb,
	status integer,
	body bytea,
	headers jsonb DEFAULT '[["content-type", "application/json"]]')
	RETURNS idem.idem_http
	AS 'MODULE_PATHNAME', 'idem_resolve'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_resolve(text, text, text, jsonb, integer, bytea, jsonb)
	IS 'settles an UNKNOWN record with a verdict and a response';

CREATE FUNCTION idem_resolve(
	principal_id text,
	idempotency_key text,
	verdict text,
	evidence jsonb,
	status integer,
	body text,
	headers jsonb DEFAULT '[["content-type", "application/json"]]')
	RETURNS idem.idem_http
	LANGUAGE SQL VOLATILE PARALLEL UNSAFE
	RETURN idem_resolve(principal_id, idempotency_key, verdict, evidence, status, convert_to(body, 'UTF8'), headers);
COMMENT ON FUNCTION idem_resolve(text, text, text, jsonb, integer, text, jsonb)
	IS 'settles an UNKNOWN record with a verdict and a response';

CREATE FUNCTION idem_resolve(
	principal_id text,
	idempotency_key text,
	verdict text,
	evidence jsonb,
	status integer,
	body jsonb,
	headers jsonb DEFAULT '[["content-type", "application/json"]]')
	RETURNS idem.idem_http
	LANGUAGE SQL VOLATILE PARALLEL UNSAFE
	RETURN idem_resolve(principal_id, idempotency_key, verdict, evidence, status, convert_to(body::text, 'UTF8'), headers);
COMMENT ON FUNCTION idem_resolve(text, text, text, jsonb, integer, jsonb, jsonb)
	IS 'settles an UNKNOWN record with a verdict and a response';

-- What operators decided; rows are only added.
CREATE TABLE idem.resolution (
	resolution_id	bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	principal_id	text COLLATE "C" NOT NULL,
	idempotency_key	text COLLATE "C" NOT NULL,
	attempt			bigint NOT NULL,
	verdict			text NOT NULL,
	evidence		jsonb NOT NULL,
	response_status	integer NOT NULL,
	resolved_by		name NOT NULL,
	resolved_at		timestamptz NOT NULL
);
COMMENT ON TABLE idem.resolution IS 'verdicts of operators on UNKNOWN records';
COMMENT ON COLUMN idem.resolution.resolution_id IS 'number of the verdict';
COMMENT ON COLUMN idem.resolution.principal_id IS 'principal of the record';
COMMENT ON COLUMN idem.resolution.idempotency_key IS 'key of the record';
COMMENT ON COLUMN idem.resolution.attempt IS 'attempt whose outcome was not known';
COMMENT ON COLUMN idem.resolution.verdict IS 'completed or not_applied';
COMMENT ON COLUMN idem.resolution.evidence IS 'how that is known';
COMMENT ON COLUMN idem.resolution.response_status IS 'HTTP status of the response that was stored';
COMMENT ON COLUMN idem.resolution.resolved_by IS 'role that was logged in';
COMMENT ON COLUMN idem.resolution.resolved_at IS 'when';

-- idem_claim_stale(operation, max_rows, lease) -> one row per claim
--
-- For a sweeper that finishes what crashed attempts left: claims up to max_rows
-- records of an operation whose lease is over, the longest over first, and skips
-- those that another transaction holds.  A row is RESUMED (run), or UNKNOWN with
-- changed: mark the business rows, and commit.
--
--	operation	as given to idem_try_insert
--	max_rows	1 to 1,000
--	lease		how long the claims count as alive, > 0; NULL: idem.lease
--
-- Mark calls with idem_before_call.  Never waits; on disk when the transaction
-- has committed, whatever synchronous_commit says.  Raises 22004, 22023, 25006,
-- 40001.
CREATE FUNCTION idem_claim_stale(
	operation text,
	max_rows integer DEFAULT 1,
	lease interval DEFAULT NULL,
	OUT principal_id text,
	OUT idempotency_key text,
	OUT outcome text,
	OUT run boolean,
	OUT changed boolean,
	OUT attempt bigint,
	OUT resource_id uuid,
	OUT call_deadline timestamptz,
	OUT context jsonb,
	OUT retry_after integer,
	OUT expires_at timestamptz,
	OUT status integer,
	OUT headers jsonb,
	OUT body bytea,
	OUT body_kept boolean)
	RETURNS SETOF record
	AS 'MODULE_PATHNAME', 'idem_claim_stale'
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION idem_claim_stale(text, integer, interval)
	IS 'claims records of an operation that crashed attempts left behind';

-- idem_lookup(principal_id, idempotency_key) -> idem.idem_claim, one row or none
--
-- What a claim of this key would hear from the record as it is, for any request:
-- IN_PROGRESS (also when the lease is over), UNKNOWN, REPLAY or RESULT_GONE; run
-- and changed are false.  No row: the key was never used, or has expired.
-- Authorise before calling: it compares no hash.  Writes nothing.  Raises 22004,
-- 22023.
CREATE FUNCTION idem_lookup(principal_id text, idempotency_key text)
	RETURNS SETOF idem.idem_claim
	AS 'MODULE_PATHNAME', 'idem_lookup'
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION idem_lookup(text, text) IS 'the answer that a record holds, without claiming it';

-- idem_http_problem(code) -> idem.idem_http, one row
--
-- The HTTP answer for a problem, a problem document (RFC 9457), where there is no
-- record to give one: idempotency_key_missing and idempotency_key_malformed
-- (400), and those that claims give as well: idempotency_key_reused,
-- operation_in_progress, operation_result_expired (409), operation_uncertain
-- (202).  Raises 22004, 22023 (no such code).
CREATE FUNCTION idem_http_problem(code text) RETURNS idem.idem_http
	AS 'MODULE_PATHNAME', 'idem_http_problem'
	LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_http_problem(text) IS 'the HTTP answer for a problem with an idempotency key';

-- idem_key(header) -> text
--
-- The key in an Idempotency-Key header: bare, or a string of structured fields
-- (RFC 9651, section 3.3.3) as the Idempotency-Key draft has it, so that abc and
-- "abc" are one key.  NULL for NULL.  Raises 22023 when it is empty, longer than
-- 255 characters, has control characters, or is a string that does not end.
CREATE FUNCTION idem_key(header text) RETURNS text
	AS 'MODULE_PATHNAME', 'idem_key'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_key(text) IS 'the key in an Idempotency-Key header';

-- idem_step_key(saga, step, generation) -> text
--
-- The key for a step of a saga: the same for every retry of the step, another for
-- another step or the next generation (after a definite refusal).  A compensation
-- is a step with a name of its own.  64 hexadecimal digits: the hash of
-- [saga, step, generation].  NULL for NULL.
CREATE FUNCTION idem_step_key(saga text, step text, generation integer DEFAULT 1) RETURNS text
	LANGUAGE SQL IMMUTABLE STRICT PARALLEL SAFE
	RETURN encode(idem_hash(jsonb_build_array(saga, step, generation)), 'hex');
COMMENT ON FUNCTION idem_step_key(text, text, integer) IS 'the idempotency key for a step of a saga';

-- idem_sweep(max_rows) -> one row: records, responses, more
--
-- Goes over up to max_rows records that are due: deletes those that have
-- expired and drops responses that are no longer kept; says how many, and
-- whether there may be more: false as well when nothing of a whole batch could go.
-- Call it from a scheduler, each call in a transaction of its own, until more is
-- false.  Rechecks each row and skips those that another transaction holds; no
-- claim waits for it.
--
--	max_rows	1 to 10,000
--
-- Raises 22004, 22023, 40001.
CREATE FUNCTION idem_sweep(
	max_rows integer DEFAULT 1000,
	OUT records bigint,
	OUT responses bigint,
	OUT more boolean)
	RETURNS record
	AS 'MODULE_PATHNAME', 'idem_sweep'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_sweep(integer) IS 'deletes expired records and responses, a batch per call';

-- UNKNOWN records, and those in progress whose lease is over.
CREATE VIEW idem.unresolved AS
	SELECT r.principal_id, r.idempotency_key, r.operation, r.state, r.resource_id, r.attempt, r.tries,
		coalesce(r.unknown_at, r.lease_expires_at) AS since,
		pg_catalog.clock_timestamp() - coalesce(r.unknown_at, r.lease_expires_at) AS age,
		r.call_started_at, r.call_deadline, r.dedup_until,
		r.unknown_reason, r.external_ref, r.context
	FROM idem.idempotency AS r
	WHERE r.state = 'UNKNOWN' OR (r.state = 'IN_PROGRESS' AND r.lease_expires_at <= pg_catalog.clock_timestamp())
	ORDER BY since;
COMMENT ON VIEW idem.unresolved IS 'records that are UNKNOWN, or whose lease is over, oldest first';
COMMENT ON COLUMN idem.unresolved.principal_id IS 'whoever the key belongs to';
COMMENT ON COLUMN idem.unresolved.idempotency_key IS 'the client''s key';
COMMENT ON COLUMN idem.unresolved.operation IS 'name of the operation';
COMMENT ON COLUMN idem.unresolved.state IS 'UNKNOWN, or IN_PROGRESS with a lease that is over';
COMMENT ON COLUMN idem.unresolved.resource_id IS 'id of the row that the work creates';
COMMENT ON COLUMN idem.unresolved.attempt IS 'the attempt that made the call, or that stopped';
COMMENT ON COLUMN idem.unresolved.tries IS 'how many attempts ended without an answer';
COMMENT ON COLUMN idem.unresolved.since IS 'when it became UNKNOWN, or when its lease was over';
COMMENT ON COLUMN idem.unresolved.age IS 'how long ago that was';
COMMENT ON COLUMN idem.unresolved.call_started_at IS 'when the external call was marked';
COMMENT ON COLUMN idem.unresolved.call_deadline IS 'no call left after this time';
COMMENT ON COLUMN idem.unresolved.dedup_until IS 'the far side honours the key until then';
COMMENT ON COLUMN idem.unresolved.unknown_reason IS 'why it is UNKNOWN';
COMMENT ON COLUMN idem.unresolved.external_ref IS 'what the far side calls the operation';
COMMENT ON COLUMN idem.unresolved.context IS 'what a later attempt needs to go on';

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

-- idem.kafka_topic_valid(topic) -> boolean
--
-- Whether a topic name is one that Kafka takes: 1 to 249 of a-z, A-Z, 0-9,
-- dot, underscore and hyphen, and neither "." nor "..".
CREATE FUNCTION idem.kafka_topic_valid(topic text) RETURNS boolean
	AS 'MODULE_PATHNAME', 'kafka_topic_valid'
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem.kafka_topic_valid(text) IS 'whether Kafka takes this topic name';

-- idem.outbox_valid(seq, slot, published_at, parked_at, topic, payload,
--		payload_bytes, headers) -> true
--
-- The CHECK of the outbox.  Raises 23514 for a row that is no event: a topic
-- that Kafka doesn't take, both payloads, headers that are not [[name, value],
-- ...] with names of 1 character or more and values that are strings or null.
-- It sees every row however it was written (INSERT, COPY, logical replication, a
-- reset by hand), so it remembers the lowest unpublished seq of each leaf, and that
-- there was a parked row, until the transaction commits, when the relay is told.
CREATE FUNCTION idem.outbox_valid(seq bigint, slot smallint, published_at timestamptz, parked_at timestamptz,
	topic text, payload jsonb, payload_bytes bytea, headers jsonb) RETURNS boolean
	AS 'MODULE_PATHNAME', 'outbox_valid'
	LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem.outbox_valid(bigint, smallint, timestamptz, timestamptz, text, jsonb, bytea, jsonb)
	IS 'refuses a row that is no event, and tells the relay of an unpublished one when its transaction commits';

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
	CONSTRAINT outbox_valid CHECK (idem.outbox_valid(seq, slot, published_at, parked_at,
		topic, payload, payload_bytes, headers))
) PARTITION BY LIST (slot);

-- No index names a column that a mark sets, neither as a key nor in its
-- predicate: marks then are HOT updates.
CREATE INDEX outbox_event_id ON idem.outbox (event_id);
CREATE INDEX outbox_parked ON idem.outbox (parked_at) WHERE parked_at IS NOT NULL;

-- idem.parked_deleted() -> trigger
--
-- Tells the relay, when the transaction commits, that parked rows are gone, which
-- held their keys.
CREATE FUNCTION idem.parked_deleted() RETURNS trigger
	AS 'MODULE_PATHNAME', 'parked_deleted'
	LANGUAGE C VOLATILE;
COMMENT ON FUNCTION idem.parked_deleted() IS 'makes the relay let go the keys of parked rows that are deleted';

-- ALWAYS, so that logical replication's apply worker fires it.  (None for UPDATE:
-- marks are written through the access method only while there is none.)
CREATE TRIGGER parked_deleted AFTER DELETE ON idem.outbox
	FOR EACH ROW WHEN (OLD.parked_at IS NOT NULL) EXECUTE FUNCTION idem.parked_deleted();
CREATE TRIGGER parked_truncated AFTER TRUNCATE ON idem.outbox
	FOR EACH STATEMENT EXECUTE FUNCTION idem.parked_deleted();
ALTER TABLE idem.outbox ENABLE ALWAYS TRIGGER parked_deleted;
ALTER TABLE idem.outbox ENABLE ALWAYS TRIGGER parked_truncated;

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

-- What the relay does differently for a topic.  A topic that has no row has the
-- defaults.  Plain INSERT, UPDATE and DELETE are the way to change it; the relay
-- follows at once, and does not read the table without a change.
CREATE TABLE idem.topic (
	topic					text COLLATE "C" PRIMARY KEY,
	on_failure				text COLLATE "C" NOT NULL DEFAULT 'block',
	max_in_flight_per_key	integer NOT NULL DEFAULT 0,
	timestamp_type			text COLLATE "C" NOT NULL DEFAULT 'created',
	CONSTRAINT topic_name CHECK (idem.kafka_topic_valid(topic)),
	CONSTRAINT topic_on_failure CHECK (on_failure IN ('block', 'skip')),
	CONSTRAINT topic_max_in_flight_per_key CHECK (max_in_flight_per_key >= 0),
	CONSTRAINT topic_timestamp_type CHECK (timestamp_type IN ('created', 'send'))
);
COMMENT ON TABLE idem.topic IS 'settings of single topics; a topic without a row has the defaults';
COMMENT ON COLUMN idem.topic.topic IS 'Kafka topic';
COMMENT ON COLUMN idem.topic.on_failure IS 'a row was refused for good and is parked; block: later rows of its key wait until it is requeued or discarded; skip: they go on';
COMMENT ON COLUMN idem.topic.max_in_flight_per_key IS 'rows of one key that may be on their way to Kafka at a time; 0: no limit but the window';
COMMENT ON COLUMN idem.topic.timestamp_type IS 'timestamp of the Kafka records; created: created_at, but the time of sending for rows older than half the topic''s retention; send: the time of sending';

-- idem.topic_changed() -> trigger
--
-- Invalidates idem.topic in the relation caches when the transaction commits,
-- which makes the relay read it again, and wakes the relay.
CREATE FUNCTION idem.topic_changed() RETURNS trigger
	AS 'MODULE_PATHNAME', 'topic_changed'
	LANGUAGE C VOLATILE;
COMMENT ON FUNCTION idem.topic_changed() IS 'makes the relay read the settings of topics again';

-- For each row and ALWAYS, so that logical replication's apply worker fires it.
CREATE TRIGGER topic_changed AFTER INSERT OR UPDATE OR DELETE ON idem.topic
	FOR EACH ROW EXECUTE FUNCTION idem.topic_changed();
CREATE TRIGGER topic_truncated AFTER TRUNCATE ON idem.topic
	FOR EACH STATEMENT EXECUTE FUNCTION idem.topic_changed();
ALTER TABLE idem.topic ENABLE ALWAYS TRIGGER topic_changed;
ALTER TABLE idem.topic ENABLE ALWAYS TRIGGER topic_truncated;

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
--	ordered			one transaction after another writes ordered events of a topic
--					and key, so that they are published in the order in which the
--					transactions commit.  Without it, two that are open at the same
--					time may commit against the order of their seq
--
-- With a once_key it waits for a concurrent emission of the same fact to commit
-- or roll back; ordered, for other transactions with ordered events of the key to
-- end.  lock_timeout applies, and deadlocks are possible.
--
-- Raises 22004 (NULL topic or ordered), 22023 (value out of its limits), 22P02 (from the
-- type jsonb: payload is not JSON), ID005 (the once_key was used with other
-- content), 55P03 (lock_timeout).
CREATE FUNCTION outbox_emit(
	topic text,
	key text,
	event_type text,
	payload jsonb,
	headers jsonb DEFAULT NULL,
	once_key text DEFAULT NULL,
	aggregate_type text DEFAULT NULL,
	aggregate_id text DEFAULT NULL,
	payload_bytes bytea DEFAULT NULL,
	ordered boolean DEFAULT false)
	RETURNS uuid
	AS 'MODULE_PATHNAME', 'outbox_emit'
	LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION outbox_emit(text, text, text, jsonb, jsonb, text, text, text, bytea, boolean)
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
	LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
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
SELECT pg_catalog.pg_extension_config_dump('idem.resolution', '');
SELECT pg_catalog.pg_extension_config_dump('idem.resolution_resolution_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.outbox_seq', '');
SELECT pg_catalog.pg_extension_config_dump('idem.outbox_once', '');
SELECT pg_catalog.pg_extension_config_dump('idem.topic', '');

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
	OUT last_error_at timestamptz,
	OUT unmarked bigint,
	OUT window_rows bigint,
	OUT trying_keys bigint,
	OUT held_keys bigint,
	OUT stopped_topics bigint,
	OUT parked bigint,
	OUT rebuilds bigint,
	OUT order_violations bigint)
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
COMMENT ON COLUMN idem.relay_status.state IS 'not preloaded, not enabled, not running, no brokers, no extension, waiting for broker, paused, retrying or running';
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
COMMENT ON COLUMN idem.relay_status.unmarked IS 'rows of in_flight that Kafka has acknowledged';
COMMENT ON COLUMN idem.relay_status.window_rows IS 'in_flight never exceeds this; at most so many events are repeated after a crash';
COMMENT ON COLUMN idem.relay_status.trying_keys IS 'keys of which a row was refused and is tried alone';
COMMENT ON COLUMN idem.relay_status.held_keys IS 'keys that a parked row holds';
COMMENT ON COLUMN idem.relay_status.stopped_topics IS 'topics that take nothing now and are tried again';
COMMENT ON COLUMN idem.relay_status.parked IS 'rows parked since the worker started';
COMMENT ON COLUMN idem.relay_status.rebuilds IS 'producers that failed and were made anew since the worker started';
COMMENT ON COLUMN idem.relay_status.order_violations IS 'rows stored behind a later one of their key, since the worker started; always 0';

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

-- idem_grant(kind, role) -> void
--
-- Gives a role the rights that its work needs, and no others:
--
--	application	claim, complete and the other functions of a record's owner,
--				hashes and keys, outbox_emit and INSERT into idem.outbox
--	consumer	inbox_apply
--	operator	idem_resolve, idem_lookup, idem_claim_stale, idem_sweep,
--				idem_relay_sweep, idem_hash_key_add, idem_hash_key_retire,
--				changing idem.topic, and reading tables and views of schema
--				idem, but no secrets
--
-- Raises 22004, 22023 (no such kind), 42704 (no such role).  Only a superuser
-- can call it.  Undo with REVOKE or DROP OWNED BY.
CREATE FUNCTION idem_grant(kind text, role regrole) RETURNS void
	LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	names	CONSTANT text[] := CASE kind
		WHEN 'application' THEN '{idem_try_insert,idem_try_insert_many,idem_before_call,idem_complete,idem_mark_unknown,idem_yield,idem_claim_stale,idem_lookup,idem_http_problem,idem_key,idem_step_key,idem_canonical,idem_hash,idem_request_hash,idem_request_hmac,hash_hmac,idem_uuid7,outbox_emit,outbox_slot,outbox_valid}'::text[]
		WHEN 'consumer' THEN '{inbox_apply}'::text[]
		WHEN 'operator' THEN '{idem_resolve,idem_lookup,idem_claim_stale,idem_sweep,idem_relay_sweep,idem_hash_key_add,idem_hash_key_retire,relay_state,kafka_topic_valid}'::text[]
	END;
	member	regprocedure;
BEGIN
	IF kind IS NULL OR role IS NULL THEN
		RAISE EXCEPTION '% must not be null', CASE WHEN kind IS NULL THEN 'kind' ELSE 'role' END
			USING ERRCODE = 'null_value_not_allowed';
	END IF;
	IF names IS NULL THEN
		RAISE EXCEPTION 'there is no kind of role "%"', kind
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use application, consumer or operator.';
	END IF;

	EXECUTE format('GRANT USAGE ON SCHEMA idem TO %s', role);
	FOR member IN
		SELECT p.oid::regprocedure
		FROM pg_proc AS p
		JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE e.extname = 'idem' AND p.proname = ANY (names)
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', member, role);
	END LOOP;
	IF kind = 'application' THEN
		EXECUTE format('GRANT INSERT ON idem.outbox TO %s', role);
		EXECUTE format('GRANT USAGE ON SEQUENCE idem.outbox_seq TO %s', role);
	ELSIF kind = 'operator' THEN
		EXECUTE format('GRANT SELECT ON idem.idempotency, idem.resolution, idem.unresolved, idem.outbox, idem.outbox_once, idem.inbox, idem.relay_status, idem.hash_keys TO %s', role);
		EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON idem.topic TO %s', role);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_grant(text, regrole) IS 'gives a role the rights that its work needs: application, consumer or operator';

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
