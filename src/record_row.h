/*-------------------------------------------------------------------------
 *
 * record_row.h
 *		A row of the table of idempotency records.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_ROW_H
#define RECORD_ROW_H

#include "access/htup.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "record_rules.h"

/* bytes of a request hash */
#define RECORD_HASH_MIN_BYTES	16
#define RECORD_HASH_MAX_BYTES	64

/* columns of idem.idempotency, in its order; those added later come behind */
typedef enum RecordColumn
{
	COL_PRINCIPAL_ID,
	COL_IDEMPOTENCY_KEY,
	COL_REQUEST_HASH,
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
	COL_UNKNOWN_REASON,
	COL_EXTERNAL_REF,
	COL_VERDICT,
	COL_RESPONSE_STATUS,
	COL_RESPONSE_HEADERS,
	COL_RESPONSE_BODY,
	COL_RESPONSE_SIZE,
	COL_RESPONSE_DIGEST,
	COL_COMPLETED_AT,
	COL_RESPONSE_EXPIRES_AT,
	COL_EXPIRES_AT,
	COL_SWEEP_AT
} RecordColumn;

#define RECORD_NCOLUMNS	(COL_SWEEP_AT + 1)

/* verdicts of operators, as facts.verdict has them */
#define VERDICT_COMPLETED		1
#define VERDICT_NOT_APPLIED		2

/* a row as read, or to be written; pointers are NULL where the column is */
typedef struct RecordRow
{
	RecordFacts facts;			/* without same_hash */
	bytea	   *request_hash;
	text	   *operation;
	pg_uuid_t	resource_id;
	FullTransactionId call_xid; /* invalid: no call was marked */
	TimestampTz created_at;
	int64		retention;		/* microseconds; unset: the setting's */
	TimestampTz sweep_at;		/* to write: nothing to sweep before */
	Jsonb	   *context;
	int32		response_status;
	Jsonb	   *response_headers;
	bytea	   *response_body;
	int64		response_size;
	bytea	   *response_digest;

	/* the columns themselves; NULL: there is no row */
	Datum	   *values;
	bool	   *nulls;
	ItemPointerData tid;		/* of the version that is locked; invalid: none, or not known */
} RecordRow;

extern const Oid record_column_types[RECORD_NCOLUMNS];

extern void record_row_check_columns(TupleDesc tupdesc);
extern void record_row_none(RecordRow *row);
extern void record_row_read(HeapTuple tuple, TupleDesc tupdesc, RecordRow *row);
extern void record_row_new_columns(RecordRow *row);
extern bool record_text_is(Datum value, const char *word);

/* Puts a value into a column. */
static inline void
record_set(RecordRow *row, RecordColumn column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* The same for a pointer that may be NULL. */
static inline void
record_set_pointer(RecordRow *row, RecordColumn column, const void *pointer)
{
	row->values[column] = PointerGetDatum(pointer);
	row->nulls[column] = pointer == NULL;
}

/* The same for a time that may be unset. */
static inline void
record_set_time(RecordRow *row, RecordColumn column, int64 time)
{
	row->values[column] = TimestampTzGetDatum(time);
	row->nulls[column] = time == RECORD_TIME_UNSET;
}

#endif							/* RECORD_ROW_H */
