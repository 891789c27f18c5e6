-- What a careful engineer writes by hand instead of idem's records: the same
-- columns that matter, a fence that never repeats, the indexes that a retry of
-- unfinished work and a sweep need.  One retention instead of two.
CREATE SCHEMA hand;

CREATE SEQUENCE hand.attempt AS bigint;

CREATE TABLE hand.request (
	principal_id		text COLLATE "C" NOT NULL,
	idempotency_key		text COLLATE "C" NOT NULL,
	request_hash		bytea NOT NULL,
	operation			text,
	state				text COLLATE "C" NOT NULL CHECK (state IN ('IN_PROGRESS', 'UNKNOWN', 'COMPLETED')),
	attempt				bigint NOT NULL,
	resource_id			uuid NOT NULL,
	created_at			timestamptz NOT NULL,
	lease_expires_at	timestamptz NOT NULL,
	call_started_at		timestamptz,
	call_deadline		timestamptz,
	dedup_until			timestamptz,
	context				jsonb,
	response_status		integer,
	response_headers	jsonb,
	response_body		bytea,
	completed_at		timestamptz,
	expires_at			timestamptz,
	PRIMARY KEY (principal_id, idempotency_key)
);
CREATE INDEX ON hand.request (lease_expires_at) WHERE state <> 'COMPLETED';
CREATE INDEX ON hand.request (expires_at) WHERE expires_at IS NOT NULL;

-- An ordinary user for both sides.
GRANT USAGE ON SCHEMA hand TO shop;
GRANT SELECT, INSERT, UPDATE ON hand.request TO shop;
GRANT USAGE ON SEQUENCE hand.attempt TO shop;
SELECT idem_grant('application', 'shop'), idem_grant('operator', 'shop');

-- hand.fill(target, first, last, expires_at): completed records, number i being principal
-- p<i mod 1000> and key md5(i), in the order of the index, so that it's as dense
-- as one that was built at once.
CREATE PROCEDURE hand.fill(target regclass, first bigint, last bigint, expires_at timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format($sql$
		INSERT INTO %s (principal_id, idempotency_key, request_hash, operation, state, attempt,
			resource_id, created_at, lease_expires_at, response_status, response_headers,
			response_body, completed_at, expires_at %s)
		SELECT 'p' || i %% 1000, md5(i::text), sha256('request'), 'pay', 'COMPLETED', i,
			md5('resource' || i)::uuid, now(), now(), 201, '[["content-type", "application/json"]]',
			convert_to(rpad('{"payment": "', 300, md5('body' || i)), 'UTF8'), now(), $3 %s
		FROM generate_series($1, $2) AS i
		ORDER BY 1, 2
		$sql$, target,
		CASE target WHEN 'idem.idempotency'::regclass
			THEN ', claim_xid, claimed_at, response_size, response_expires_at, sweep_at' ELSE '' END,
		CASE target WHEN 'idem.idempotency'::regclass
			THEN $sql$, '3', now(), 300, $3, $3 $sql$ ELSE '' END)
	USING first, last, expires_at;
END
$$;
