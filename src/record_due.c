/*-------------------------------------------------------------------------
 *
 * record_due.c
 *		Idempotency records whose time has come: unfinished ones, expired ones.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "record_statement.h"
#include "record_store.h"

#define LOCK_STALE_RECORDS \
	"SELECT principal_id, idempotency_key FROM idem.idempotency" \
	" WHERE state OPERATOR(pg_catalog.=) 'IN_PROGRESS' AND lease_expires_at OPERATOR(pg_catalog.<=) $1" \
	" AND operation OPERATOR(pg_catalog.=) $2" \
	" AND (expires_at IS NULL OR expires_at OPERATOR(pg_catalog.>) $1)" \
	" AND (pg_catalog.pg_current_xact_id_if_assigned() IS NULL" \
	" OR claim_xid OPERATOR(pg_catalog.<>) pg_catalog.pg_current_xact_id_if_assigned())" \
	" ORDER BY lease_expires_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED"

/*
 * One pass over the records that have something to sweep, in the order of
 * sweep_at, so that a batch doesn't walk over what the next ones are for.  Locking
 * a row looks at it again.  Records that nobody has settled are left alone: an
 * owner must not wait for a sweep.
 */
#define SWEEP \
	"WITH due AS MATERIALIZED (" \
	"SELECT ctid AS tid, expires_at OPERATOR(pg_catalog.<=) $1 AS over" \
	" FROM idem.idempotency WHERE sweep_at OPERATOR(pg_catalog.<=) $1" \
	" AND (expires_at OPERATOR(pg_catalog.<=) $1 OR response_expires_at OPERATOR(pg_catalog.<=) $1" \
	" AND (response_body IS NOT NULL OR response_digest IS NOT NULL))" \
	" ORDER BY sweep_at LIMIT $2 FOR UPDATE SKIP LOCKED)," \
	" deleted AS (DELETE FROM idem.idempotency" \
	" WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT tid FROM due WHERE over)) RETURNING 1)," \
	" dropped AS (UPDATE idem.idempotency SET response_body = NULL, response_digest = NULL," \
	" response_headers = '[]', context = NULL, sweep_at = expires_at" \
	" WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT tid FROM due WHERE NOT over)) RETURNING 1)" \
	" SELECT (SELECT pg_catalog.count(*) FROM deleted), (SELECT pg_catalog.count(*) FROM dropped)," \
	" (SELECT pg_catalog.count(*) FROM due)"

/*
 * Locks the rows of an operation whose lease is over and that nobody else holds,
 * and gives their keys; keys has room for max_rows.
 */
int
record_lock_stale(text *operation, TimestampTz now, int max_rows, RecordKey *keys)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[3] = {TIMESTAMPTZOID, TEXTOID, INT4OID};
	Datum		values[3];
	SPITupleTable *found;
	int			n;

	values[0] = TimestampTzGetDatum(now);
	values[1] = PointerGetDatum(operation);
	values[2] = Int32GetDatum(max_rows);
	n = (int) record_run(&plan, LOCK_STALE_RECORDS, 3, types, values, NULL, SPI_OK_SELECT);
	found = SPI_tuptable;
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		keys[i].principal_id = DatumGetTextP(SPI_getbinval(found->vals[i], found->tupdesc, 1, &isnull));
		keys[i].idempotency_key = DatumGetTextP(SPI_getbinval(found->vals[i], found->tupdesc, 2, &isnull));
	}
	return n;
}

/*
 * Deletes records that have expired and drops responses that are no longer kept,
 * of at most max_rows records.
 */
RecordSwept
record_sweep(TimestampTz now, int max_rows)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {TIMESTAMPTZOID, INT4OID};
	Datum		values[2];
	RecordSwept swept;
	bool		isnull;

	values[0] = TimestampTzGetDatum(now);
	values[1] = Int32GetDatum(max_rows);
	record_run(&plan, SWEEP, 2, types, values, NULL, SPI_OK_SELECT);

#define COUNT(i) DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, (i), &isnull))
	swept.deleted = COUNT(1);
	swept.dropped = COUNT(2);
	swept.due = COUNT(3);
#undef COUNT
	return swept;
}
