/*-------------------------------------------------------------------------
 *
 * record_row.c
 *		A row of the table of idempotency records, taken apart.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "idem_args.h"
#include "record_row.h"

const Oid	record_column_types[RECORD_NCOLUMNS] = {
	TEXTOID, TEXTOID, BYTEAOID, TEXTOID, TEXTOID, INT8OID, INT4OID, XID8OID, XID8OID, UUIDOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	BOOLOID, JSONBOID, INTERVALOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, JSONBOID,
	BYTEAOID, INT8OID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID
};

/*
 * Columns are known by their place.  Somebody may have dropped one or changed its
 * type: better an error than a wrong answer.
 */
void
record_row_check_columns(TupleDesc tupdesc)
{
	for (int i = 0; i < RECORD_NCOLUMNS; i++)
		if (i >= tupdesc->natts || TupleDescAttr(tupdesc, i)->attisdropped ||
			TupleDescAttr(tupdesc, i)->atttypid != record_column_types[i])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("column %d of table idem.idempotency is not the one that the install script made", i + 1),
					 errhint("Give the table its own columns again; others may stand behind them.")));
}

/* There is no row. */
void
record_row_none(RecordRow *row)
{
	memset(row, 0, sizeof(*row));
	row->facts.state = RECORD_NONE;
	ItemPointerSetInvalid(&row->tid);
}

/* Whether a value of type text is a word. */
bool
record_text_is(Datum value, const char *word)
{
	text	   *t = DatumGetTextPP(value);
	Size		len = strlen(word);

	return VARSIZE_ANY_EXHDR(t) == len && memcmp(VARDATA_ANY(t), word, len) == 0;
}

static int64
time_column(const RecordRow *row, RecordColumn column)
{
	return row->nulls[column] ? RECORD_TIME_UNSET : DatumGetTimestampTz(row->values[column]);
}

/* A column of variable length, or NULL. */
static void *
varlena_column(const RecordRow *row, RecordColumn column)
{
	return row->nulls[column] ? NULL : PG_DETOAST_DATUM(row->values[column]);
}

static RecordState
state_column(const RecordRow *row)
{
	if (record_text_is(row->values[COL_STATE], "IN_PROGRESS"))
		return RECORD_IN_PROGRESS;
	if (record_text_is(row->values[COL_STATE], "UNKNOWN"))
		return RECORD_UNKNOWN;
	return RECORD_COMPLETED;
}

static int
verdict_column(const RecordRow *row)
{
	if (row->nulls[COL_VERDICT])
		return 0;
	return record_text_is(row->values[COL_VERDICT], "completed") ? VERDICT_COMPLETED : VERDICT_NOT_APPLIED;
}

static FullTransactionId
xid_column(const RecordRow *row, RecordColumn column)
{
	return row->nulls[column] ? InvalidFullTransactionId : DatumGetFullTransactionId(row->values[column]);
}

/* Whether a transaction id is that of the running transaction. */
static bool
is_mine(FullTransactionId xid)
{
	return FullTransactionIdIsValid(xid) &&
		FullTransactionIdEquals(xid, GetTopFullTransactionIdIfAny());
}

/* What the rules look at. */
static void
read_facts(RecordRow *row)
{
	RecordFacts *facts = &row->facts;

	facts->state = state_column(row);
	facts->attempt = DatumGetInt64(row->values[COL_ATTEMPT]);
	facts->tries = DatumGetInt32(row->values[COL_TRIES]);
	facts->claimed_here = is_mine(xid_column(row, COL_CLAIM_XID));
	facts->call_marked_here = is_mine(row->call_xid);
	facts->claimed_at = time_column(row, COL_CLAIMED_AT);
	facts->lease_expires_at = time_column(row, COL_LEASE_EXPIRES_AT);
	facts->call_started_at = time_column(row, COL_CALL_STARTED_AT);
	facts->call_deadline = time_column(row, COL_CALL_DEADLINE);
	facts->dedup_until = time_column(row, COL_DEDUP_UNTIL);
	facts->yielded = DatumGetBool(row->values[COL_YIELDED]);
	facts->unknown_at = time_column(row, COL_UNKNOWN_AT);
	facts->verdict = verdict_column(row);
	facts->has_response = row->response_body != NULL || row->response_digest != NULL;
	facts->response_expires_at = time_column(row, COL_RESPONSE_EXPIRES_AT);
	facts->expires_at = time_column(row, COL_EXPIRES_AT);
}

/*
 * Takes a tuple of the table apart.  The row points into the tuple, which has to
 * live as long; what is stored out of line is fetched where it is needed.
 */
void
record_row_read(HeapTuple tuple, TupleDesc tupdesc, RecordRow *row)
{
	record_row_check_columns(tupdesc);
	record_row_none(row);
	row->values = palloc(sizeof(Datum) * tupdesc->natts);
	row->nulls = palloc(sizeof(bool) * tupdesc->natts);
	heap_deform_tuple(tuple, tupdesc, row->values, row->nulls);

	row->request_hash = varlena_column(row, COL_REQUEST_HASH);
	row->operation = varlena_column(row, COL_OPERATION);
	row->resource_id = *DatumGetUUIDP(row->values[COL_RESOURCE_ID]);
	row->call_xid = xid_column(row, COL_CALL_XID);
	row->created_at = time_column(row, COL_CREATED_AT);
	row->retention = row->nulls[COL_RETENTION] ? RECORD_TIME_UNSET
		: idem_interval_usec(DatumGetIntervalP(row->values[COL_RETENTION]));
	row->context = varlena_column(row, COL_CONTEXT);
	row->response_status = row->nulls[COL_RESPONSE_STATUS] ? 0 : DatumGetInt32(row->values[COL_RESPONSE_STATUS]);
	row->response_headers = varlena_column(row, COL_RESPONSE_HEADERS);
	row->response_body = varlena_column(row, COL_RESPONSE_BODY);
	row->response_size = row->nulls[COL_RESPONSE_SIZE] ? 0 : DatumGetInt64(row->values[COL_RESPONSE_SIZE]);
	row->response_digest = varlena_column(row, COL_RESPONSE_DIGEST);
	read_facts(row);
}

/* Gives a row new columns, all of them NULL. */
void
record_row_new_columns(RecordRow *row)
{
	row->values = palloc0(sizeof(Datum) * RECORD_NCOLUMNS);
	row->nulls = palloc(sizeof(bool) * RECORD_NCOLUMNS);
	memset(row->nulls, true, sizeof(bool) * RECORD_NCOLUMNS);
}
