/*-------------------------------------------------------------------------
 *
 * record_store.c
 *		The table of idempotency records: looking, locking, writing.
 *
 * Statements are constant text with qualified names and operators, so that no
 * search_path changes what they mean.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "idem_args.h"
#include "record_store.h"

/*
 * Locks on keys are transaction-scoped advisory locks of a class of their own:
 * users' advisory locks have 1 or 2 in this field of the tag.
 */
#define KEY_LOCK_CLASS	0x1de

#define COLUMNS \
	"request_hash, operation, state, attempt, tries, claim_xid, call_xid, resource_id," \
	" created_at, claimed_at, lease_expires_at, call_started_at, call_deadline, dedup_until," \
	" yielded, context, retention, unknown_at, verdict, response_status, response_headers, response_body, response_size, response_digest," \
	" response_expires_at, expires_at"

/* positions of COLUMNS in a row */
enum
{
	COL_REQUEST_HASH = 1,
	COL_OPERATION,
	COL_STATE,
	COL_ATTEMPT,
	COL_TRIES,
	COL_CLAIM_XID,
	COL_CALL_XID,
	COL_RESOURCE_ID,
	COL_CREATED_AT,
	COL_CLAIMED_AT,
	COL_LEASE_EXPIRES_AT,
	COL_CALL_STARTED_AT,
	COL_CALL_DEADLINE,
	COL_DEDUP_UNTIL,
	COL_YIELDED,
	COL_CONTEXT,
	COL_RETENTION,
	COL_UNKNOWN_AT,
	COL_VERDICT,
	COL_RESPONSE_STATUS,
	COL_RESPONSE_HEADERS,
	COL_RESPONSE_BODY,
	COL_RESPONSE_SIZE,
	COL_RESPONSE_DIGEST,
	COL_RESPONSE_EXPIRES_AT,
	COL_EXPIRES_AT
};

#define THIS_RECORD \
	" WHERE principal_id OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2"

#define SELECT_RECORD	"SELECT " COLUMNS " FROM idem.idempotency" THIS_RECORD

/* Values of an owned row, as parameters $3 and up of two statements. */
#define OWNED_COLUMNS \
	"request_hash, operation, tries, claim_xid, call_xid, resource_id, created_at, claimed_at," \
	" lease_expires_at, call_started_at, call_deadline, dedup_until, context, expires_at, retention, sweep_at"
#define OWNED_VALUES	"$3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18"
#define NOWNED			16

#define INSERT_RECORD \
	"INSERT INTO idem.idempotency (principal_id, idempotency_key, state, attempt, " OWNED_COLUMNS ")" \
	" VALUES ($1, $2, 'IN_PROGRESS', pg_catalog.nextval('idem.attempt'), " OWNED_VALUES ")" \
	" ON CONFLICT (principal_id, idempotency_key) DO NOTHING RETURNING attempt"

#define OWN_RECORD \
	"UPDATE idem.idempotency SET (state, attempt, " OWNED_COLUMNS ") =" \
	" ROW('IN_PROGRESS', pg_catalog.nextval('idem.attempt'), " OWNED_VALUES ")," \
	" response_status = NULL, response_headers = NULL, response_body = NULL," \
	" response_size = NULL, response_digest = NULL," \
	" completed_at = NULL, response_expires_at = NULL, yielded = false," \
	" unknown_at = NULL, unknown_reason = NULL, external_ref = NULL, verdict = NULL" \
	THIS_RECORD " RETURNING attempt"

#define MARK_RECORD_CALL \
	"UPDATE idem.idempotency SET call_xid = $3, lease_expires_at = $4, call_started_at = $5," \
	" call_deadline = $6, dedup_until = $7, expires_at = NULL, yielded = false" THIS_RECORD

#define YIELD_RECORD \
	"UPDATE idem.idempotency SET lease_expires_at = $3, yielded = true" THIS_RECORD

#define SET_RECORD_UNKNOWN \
	"UPDATE idem.idempotency SET state = 'UNKNOWN', tries = $3, unknown_at = $4, unknown_reason = $5," \
	" external_ref = $6, response_status = $7, expires_at = NULL" THIS_RECORD

#define COMPLETE_RECORD \
	"UPDATE idem.idempotency SET state = 'COMPLETED', response_status = $3, response_headers = $4," \
	" response_body = $5, response_size = $6, response_digest = $7, completed_at = $8," \
	" response_expires_at = $9, expires_at = $10, verdict = $11" THIS_RECORD

#define ADD_RESOLUTION \
	"INSERT INTO idem.resolution (principal_id, idempotency_key, attempt, verdict, evidence," \
	" response_status, resolved_by, resolved_at) VALUES ($1, $2, $3, $4, $5, $6, SESSION_USER, $7)"

#define LOCK_STALE_RECORDS \
	"SELECT principal_id, idempotency_key FROM idem.idempotency" \
	" WHERE state OPERATOR(pg_catalog.=) 'IN_PROGRESS' AND lease_expires_at OPERATOR(pg_catalog.<=) $1" \
	" AND operation OPERATOR(pg_catalog.=) $2" \
	" AND (expires_at IS NULL OR expires_at OPERATOR(pg_catalog.>) $1)" \
	" AND (pg_catalog.pg_current_xact_id_if_assigned() IS NULL" \
	" OR claim_xid OPERATOR(pg_catalog.<>) pg_catalog.pg_current_xact_id_if_assigned())" \
	" ORDER BY lease_expires_at LIMIT $3 FOR UPDATE SKIP LOCKED"

/* The lock on each row is taken and its row looked at again before it goes. */
#define DELETE_EXPIRED \
	"DELETE FROM idem.idempotency WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(" \
	"SELECT ctid FROM idem.idempotency WHERE sweep_at OPERATOR(pg_catalog.<=) $1" \
	" AND expires_at OPERATOR(pg_catalog.<=) $1" \
	" ORDER BY sweep_at LIMIT $2 FOR UPDATE SKIP LOCKED))"

#define DROP_RESPONSES \
	"UPDATE idem.idempotency SET response_body = NULL, response_digest = NULL," \
	" response_headers = '[]', context = NULL, sweep_at = expires_at" \
	" WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(" \
	"SELECT ctid FROM idem.idempotency WHERE sweep_at OPERATOR(pg_catalog.<=) $1" \
	" AND response_expires_at OPERATOR(pg_catalog.<=) $1 AND (response_body IS NOT NULL OR response_digest IS NOT NULL)" \
	" ORDER BY sweep_at LIMIT $2 FOR UPDATE SKIP LOCKED))"

/* Runs a statement about one record, prepared at its first use in a session. */
static uint64
run(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types, Datum *values,
	const char *nulls, bool read_only, int expected)
{
	int			rc;

	if (*plan == NULL)
	{
		SPIPlanPtr	prepared = SPI_prepare(sql, nargs, types);

		if (prepared == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(prepared);
		*plan = prepared;
	}
	rc = SPI_execute_plan(*plan, values, nulls, read_only, 0);
	if (rc != expected)
		elog(ERROR, "unexpected result of a statement on idem.idempotency: %s",
			 SPI_result_code_string(rc));
	return SPI_processed;
}

/* Whether two byte strings are there and equal. */
bool
record_same_bytes(const bytea *a, const bytea *b)
{
	return a != NULL && b != NULL &&
		VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/*
 * Raises the error for a statement that should have written a record and did
 * not: only the table's own triggers and rules can do that.
 */
void
record_not_written(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
			 errmsg("the idempotency record was not written"),
			 errhint("A trigger or a rule on idem.idempotency suppressed it.")));
}

/* One column of the row just read; *isnull tells. */
static Datum
column(int col, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, col, isnull);
}

static int64
time_column(int col)
{
	bool		isnull;
	Datum		value = column(col, &isnull);

	return isnull ? RECORD_TIME_UNSET : DatumGetTimestampTz(value);
}

/* A column of variable length, or NULL. */
static void *
varlena_column(int col)
{
	bool		isnull;
	Datum		value = column(col, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM(value);
}

static int64
int_column(int col, bool is64)
{
	bool		isnull;
	Datum		value = column(col, &isnull);

	if (isnull)
		return 0;
	return is64 ? DatumGetInt64(value) : DatumGetInt32(value);
}

static FullTransactionId
xid_column(int col)
{
	bool		isnull;
	Datum		value = column(col, &isnull);

	return isnull ? InvalidFullTransactionId : DatumGetFullTransactionId(value);
}

static RecordState
state_column(void)
{
	const text *value = varlena_column(COL_STATE);
	const char *state = text_to_cstring(value);

	if (strcmp(state, "IN_PROGRESS") == 0)
		return RECORD_IN_PROGRESS;
	if (strcmp(state, "UNKNOWN") == 0)
		return RECORD_UNKNOWN;
	return RECORD_COMPLETED;
}

static int64
interval_column(int col)
{
	bool		isnull;
	Datum		value = column(col, &isnull);

	return isnull ? RECORD_TIME_UNSET : idem_interval_usec(DatumGetIntervalP(value));
}

static int
verdict_column(void)
{
	const text *value = varlena_column(COL_VERDICT);

	if (value == NULL)
		return 0;
	return strcmp(text_to_cstring(value), "completed") == 0 ? VERDICT_COMPLETED : VERDICT_NOT_APPLIED;
}

/* Whether a transaction id is that of the running transaction. */
static bool
is_mine(FullTransactionId xid)
{
	return FullTransactionIdIsValid(xid) &&
		FullTransactionIdEquals(xid, GetTopFullTransactionIdIfAny());
}

/* Takes over the row just read, if there is one. */
static bool
read_row(RecordRow *row)
{
	bool		isnull;

	memset(row, 0, sizeof(*row));
	row->facts.state = RECORD_NONE;
	if (SPI_processed == 0)
		return false;

	row->request_hash = varlena_column(COL_REQUEST_HASH);
	row->operation = varlena_column(COL_OPERATION);
	row->facts.state = state_column();
	row->facts.attempt = int_column(COL_ATTEMPT, true);
	row->facts.tries = (int32) int_column(COL_TRIES, false);
	row->call_xid = xid_column(COL_CALL_XID);
	row->facts.claimed_here = is_mine(xid_column(COL_CLAIM_XID));
	row->facts.call_marked_here = is_mine(row->call_xid);
	row->resource_id = *DatumGetUUIDP(column(COL_RESOURCE_ID, &isnull));
	row->created_at = time_column(COL_CREATED_AT);
	row->facts.claimed_at = time_column(COL_CLAIMED_AT);
	row->facts.lease_expires_at = time_column(COL_LEASE_EXPIRES_AT);
	row->facts.call_started_at = time_column(COL_CALL_STARTED_AT);
	row->facts.call_deadline = time_column(COL_CALL_DEADLINE);
	row->facts.dedup_until = time_column(COL_DEDUP_UNTIL);
	row->facts.yielded = DatumGetBool(column(COL_YIELDED, &isnull));
	row->context = varlena_column(COL_CONTEXT);
	row->retention = interval_column(COL_RETENTION);
	row->facts.unknown_at = time_column(COL_UNKNOWN_AT);
	row->facts.verdict = verdict_column();
	row->response_status = (int32) int_column(COL_RESPONSE_STATUS, false);
	row->response_headers = varlena_column(COL_RESPONSE_HEADERS);
	row->response_body = varlena_column(COL_RESPONSE_BODY);
	row->response_size = int_column(COL_RESPONSE_SIZE, true);
	row->response_digest = varlena_column(COL_RESPONSE_DIGEST);
	row->facts.has_response = row->response_body != NULL || row->response_digest != NULL;
	row->facts.response_expires_at = time_column(COL_RESPONSE_EXPIRES_AT);
	row->facts.expires_at = time_column(COL_EXPIRES_AT);
	return true;
}

/* Runs one of the statements that read a record. */
static bool
read_record(SPIPlanPtr *plan, const char *sql, const RecordKey *key, RecordRow *row)
{
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];

	values[0] = PointerGetDatum(key->principal_id);
	values[1] = PointerGetDatum(key->idempotency_key);
	run(plan, sql, 2, types, values, NULL, false, SPI_OK_SELECT);
	return read_row(row);
}

/* Reads a record without a lock; false when no row is visible. */
bool
record_look(const RecordKey *key, RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	return read_record(&plan, SELECT_RECORD, key, row);
}

/*
 * The same with what is committed at this moment, whatever snapshot the
 * transaction has.
 */
bool
record_look_latest(const RecordKey *key, RecordRow *row)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];

	values[0] = PointerGetDatum(key->principal_id);
	values[1] = PointerGetDatum(key->idempotency_key);
	PushActiveSnapshot(GetLatestSnapshot());
	run(&plan, SELECT_RECORD, 2, types, values, NULL, true, SPI_OK_SELECT);
	PopActiveSnapshot();
	return read_row(row);
}

/* Locks and reads a record's row, if no other transaction holds it. */
bool
record_try_lock_row(const RecordKey *key, RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	return read_record(&plan, SELECT_RECORD " FOR UPDATE SKIP LOCKED", key, row);
}

/* Locks and reads a record's row, waiting for whoever holds it. */
bool
record_lock_row(const RecordKey *key, RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	return read_record(&plan, SELECT_RECORD " FOR UPDATE", key, row);
}

static void
key_tag(const RecordKey *key, LOCKTAG *tag)
{
	uint64		hash;

	hash = hash_bytes_extended((unsigned char *) VARDATA_ANY(key->principal_id),
							   VARSIZE_ANY_EXHDR(key->principal_id), 0);
	hash = hash_bytes_extended((unsigned char *) VARDATA_ANY(key->idempotency_key),
							   VARSIZE_ANY_EXHDR(key->idempotency_key), hash);
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, KEY_LOCK_CLASS);
}

/*
 * Takes the lock on (principal, key) until the end of the transaction, without
 * waiting.  It stands for a row that others can't see yet.  Two keys of one
 * hash only make one of them hear IN_PROGRESS.
 */
bool
record_try_lock_key(const RecordKey *key)
{
	LOCKTAG		tag;

	key_tag(key, &tag);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Gives the lock back, where nothing was written under it.  An earlier claim of
 * the transaction keeps its own.
 */
void
record_unlock_key(const RecordKey *key)
{
	LOCKTAG		tag;

	key_tag(key, &tag);
	LockRelease(&tag, ExclusiveLock, false);
}

static void
set_time(Datum *value, char *isnull, int64 time)
{
	*value = TimestampTzGetDatum(time);
	*isnull = time == RECORD_TIME_UNSET ? 'n' : ' ';
}

static void
set_pointer(Datum *value, char *isnull, const void *pointer)
{
	*value = PointerGetDatum(pointer);
	*isnull = pointer == NULL ? 'n' : ' ';
}

/*
 * An attempt number that was told must not come again, not even when the server
 * crashes before this transaction commits.  The sequence logs its numbers in
 * advance, so that there is something to flush for a few of them only.
 */
static void
flush_attempts(void)
{
	Oid			relid = RangeVarGetRelid(makeRangeVar("idem", "attempt", -1), AccessShareLock, false);
	Relation	sequence = relation_open(relid, NoLock);
	Buffer		buffer = ReadBuffer(sequence, 0);
	XLogRecPtr	lsn = BufferGetLSNAtomic(buffer);

	ReleaseBuffer(buffer);
	relation_close(sequence, NoLock);
	XLogFlush(lsn);
}

/*
 * Runs one of the statements that give a record an owner, and takes over the
 * new attempt.  row holds what stays the same over attempts.
 */
static bool
own(SPIPlanPtr *plan, const char *sql, int expected, const RecordKey *key,
	RecordRow *row, const RecordDecision *decision)
{
	Oid			types[2 + NOWNED] = {TEXTOID, TEXTOID, BYTEAOID, TEXTOID, INT4OID, XID8OID, XID8OID, UUIDOID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, JSONBOID, TIMESTAMPTZOID, INTERVALOID, TIMESTAMPTZOID};
	Datum		values[2 + NOWNED];
	char		nulls[2 + NOWNED];
	FullTransactionId xid = GetTopFullTransactionId();
	Interval	retention = {0};
	bool		isnull;
	int			i = 0;

	if (decision->marks_call)
		row->call_xid = xid;

	memset(nulls, ' ', sizeof(nulls));
	values[i++] = PointerGetDatum(key->principal_id);
	values[i++] = PointerGetDatum(key->idempotency_key);
	values[i++] = PointerGetDatum(row->request_hash);
	set_pointer(&values[i], &nulls[i], row->operation), i++;
	values[i++] = Int32GetDatum(decision->tries);
	values[i++] = FullTransactionIdGetDatum(xid);
	nulls[i] = FullTransactionIdIsValid(row->call_xid) ? ' ' : 'n';
	values[i++] = FullTransactionIdGetDatum(row->call_xid);
	values[i++] = UUIDPGetDatum(&row->resource_id);
	values[i++] = TimestampTzGetDatum(row->created_at);
	values[i++] = TimestampTzGetDatum(row->facts.claimed_at);
	set_time(&values[i], &nulls[i], decision->lease_expires_at), i++;
	set_time(&values[i], &nulls[i], decision->call_started_at), i++;
	set_time(&values[i], &nulls[i], decision->call_deadline), i++;
	set_time(&values[i], &nulls[i], decision->dedup_until), i++;
	set_pointer(&values[i], &nulls[i], row->context), i++;
	set_time(&values[i], &nulls[i], decision->expires_at), i++;
	retention.time = row->retention;
	nulls[i] = row->retention == RECORD_TIME_UNSET ? 'n' : ' ';
	values[i++] = IntervalPGetDatum(&retention);
	values[i++] = TimestampTzGetDatum(row->sweep_at);
	Assert(i == 2 + NOWNED);

	if (run(plan, sql, 2 + NOWNED, types, values, nulls, false, expected) == 0)
		return false;
	row->facts.attempt = DatumGetInt64(column(1, &isnull));
	flush_attempts();
	return true;
}

/* Inserts a new record; false when there is one, seen or not. */
bool
record_insert(const RecordKey *key, RecordRow *row, const RecordDecision *decision)
{
	static SPIPlanPtr plan = NULL;

	return own(&plan, INSERT_RECORD, SPI_OK_INSERT_RETURNING, key, row, decision);
}

/* Gives a record, whose row is locked, a new owner. */
void
record_own(const RecordKey *key, RecordRow *row, const RecordDecision *decision)
{
	static SPIPlanPtr plan = NULL;

	if (!own(&plan, OWN_RECORD, SPI_OK_UPDATE_RETURNING, key, row, decision))
		record_not_written();
}

/* Runs an update of a record whose row is locked; the key is put in front. */
static void
update_locked(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types,
			  const RecordKey *key, Datum *values, const char *nulls)
{
	values[0] = PointerGetDatum(key->principal_id);
	values[1] = PointerGetDatum(key->idempotency_key);
	if (run(plan, sql, nargs, types, values, nulls, false, SPI_OK_UPDATE) != 1)
		record_not_written();
}

/* Marks a call of a record whose row is locked. */
void
record_mark_call(const RecordKey *key, const RecordDecision *decision)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[7] = {TEXTOID, TEXTOID, XID8OID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum		values[7];
	char		nulls[7];

	memset(nulls, ' ', sizeof(nulls));
	values[2] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	set_time(&values[3], &nulls[3], decision->lease_expires_at);
	set_time(&values[4], &nulls[4], decision->call_started_at);
	set_time(&values[5], &nulls[5], decision->call_deadline);
	set_time(&values[6], &nulls[6], decision->dedup_until);
	update_locked(&plan, MARK_RECORD_CALL, 7, types, key, values, nulls);
}

/* Ends the lease of a record whose row is locked. */
void
record_yield(const RecordKey *key, TimestampTz now)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[3] = {TEXTOID, TEXTOID, TIMESTAMPTZOID};
	Datum		values[3];

	values[2] = TimestampTzGetDatum(now);
	update_locked(&plan, YIELD_RECORD, 3, types, key, values, NULL);
}

/* Makes a record, whose row is locked, UNKNOWN. */
void
record_set_unknown(const RecordKey *key, const RecordUnknown *unknown)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[7] = {TEXTOID, TEXTOID, INT4OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, INT4OID};
	Datum		values[7];
	char		nulls[7];

	memset(nulls, ' ', sizeof(nulls));
	values[2] = Int32GetDatum(unknown->tries);
	values[3] = TimestampTzGetDatum(unknown->at);
	set_pointer(&values[4], &nulls[4], unknown->reason);
	set_pointer(&values[5], &nulls[5], unknown->external_ref);
	values[6] = Int32GetDatum(unknown->status);
	update_locked(&plan, SET_RECORD_UNKNOWN, 7, types, key, values, nulls);
}

/* Stores the response of a record whose row is locked. */
void
record_complete(const RecordKey *key, const RecordResponse *response)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[11] = {TEXTOID, TEXTOID, INT4OID, JSONBOID, BYTEAOID, INT8OID, BYTEAOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID};
	Datum		values[11];
	char		nulls[11];

	memset(nulls, ' ', sizeof(nulls));
	values[2] = Int32GetDatum(response->status);
	values[3] = JsonbPGetDatum(response->headers);
	set_pointer(&values[4], &nulls[4], response->body);
	values[5] = Int64GetDatum(response->size);
	set_pointer(&values[6], &nulls[6], response->digest);
	values[7] = TimestampTzGetDatum(response->completed_at);
	values[8] = TimestampTzGetDatum(response->response_expires_at);
	values[9] = TimestampTzGetDatum(response->expires_at);
	set_pointer(&values[10], &nulls[10], response->verdict ? cstring_to_text(response->verdict) : NULL);
	update_locked(&plan, COMPLETE_RECORD, 11, types, key, values, nulls);
}

/* Writes down who settled a record, how and why. */
void
record_add_resolution(const RecordKey *key, int64 attempt, Jsonb *evidence, const RecordResponse *response)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[7] = {TEXTOID, TEXTOID, INT8OID, TEXTOID, JSONBOID, INT4OID, TIMESTAMPTZOID};
	Datum		values[7];

	values[0] = PointerGetDatum(key->principal_id);
	values[1] = PointerGetDatum(key->idempotency_key);
	values[2] = Int64GetDatum(attempt);
	values[3] = CStringGetTextDatum(response->verdict);
	values[4] = JsonbPGetDatum(evidence);
	values[5] = Int32GetDatum(response->status);
	values[6] = TimestampTzGetDatum(response->completed_at);
	run(&plan, ADD_RESOLUTION, 7, types, values, NULL, false, SPI_OK_INSERT);
}

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
	int			n;

	values[0] = TimestampTzGetDatum(now);
	values[1] = PointerGetDatum(operation);
	values[2] = Int32GetDatum(max_rows);
	n = (int) run(&plan, LOCK_STALE_RECORDS, 3, types, values, NULL, false, SPI_OK_SELECT);
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		keys[i].principal_id = DatumGetTextP(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		keys[i].idempotency_key = DatumGetTextP(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull));
	}
	return n;
}

static int64
sweep(SPIPlanPtr *plan, const char *sql, TimestampTz now, int max_rows, int expected)
{
	Oid			types[2] = {TIMESTAMPTZOID, INT4OID};
	Datum		values[2];

	values[0] = TimestampTzGetDatum(now);
	values[1] = Int32GetDatum(max_rows);
	return (int64) run(plan, sql, 2, types, values, NULL, false, expected);
}

/* Deletes records that have expired. */
int64
record_delete_expired(TimestampTz now, int max_rows)
{
	static SPIPlanPtr plan = NULL;

	return sweep(&plan, DELETE_EXPIRED, now, max_rows, SPI_OK_DELETE);
}

/* Drops responses that are no longer kept; their records stay. */
int64
record_drop_responses(TimestampTz now, int max_rows)
{
	static SPIPlanPtr plan = NULL;

	return sweep(&plan, DROP_RESPONSES, now, max_rows, SPI_OK_UPDATE);
}
