\set ECHO none
--
-- pg_temp.age(principal, key, interval): as if all that a record tells had
-- happened so much earlier.
--
CREATE FUNCTION pg_temp.age(principal text, key text, by interval) RETURNS void
LANGUAGE SQL AS $$
	UPDATE idem.idempotency
	   SET created_at = created_at - by, claimed_at = claimed_at - by, lease_expires_at = lease_expires_at - by,
		   call_started_at = call_started_at - by, call_deadline = call_deadline - by, dedup_until = dedup_until - by,
		   unknown_at = unknown_at - by, completed_at = completed_at - by,
		   response_expires_at = response_expires_at - by, expires_at = expires_at - by, sweep_at = sweep_at - by
	 WHERE principal_id = principal AND idempotency_key = key;
$$;
\set ECHO all
