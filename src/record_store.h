/*-------------------------------------------------------------------------
 *
 * record_store.h
 *		The table of idempotency records: looking, locking, writing.
 *
 * All functions run inside SPI_connect; what they give back lives in SPI's
 * memory context.  Each statement takes a new snapshot where the isolation
 * level allows it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_STORE_H
#define RECORD_STORE_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "record_rules.h"

/* bytes of a request hash */
#define RECORD_HASH_MIN_BYTES	16
#define RECORD_HASH_MAX_BYTES	64

/* who and which */
typedef struct RecordKey
{
	text	   *principal_id;
	text	   *idempotency_key;
} RecordKey;

/* a row as read; pointers are NULL where the column is */
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
} RecordRow;

/* a response to store; body NULL: not kept, digest given instead */
typedef struct RecordResponse
{
	int32		status;
	Jsonb	   *headers;
	bytea	   *body;
	int64		size;
	bytea	   *digest;
	const char *verdict;		/* of an operator, or NULL */
	TimestampTz completed_at;
	TimestampTz response_expires_at;
	TimestampTz expires_at;
} RecordResponse;

/* why a record becomes UNKNOWN; pointers may be NULL */
typedef struct RecordUnknown
{
	int32		tries;
	TimestampTz at;
	text	   *reason;
	text	   *external_ref;
	int32		status;			/* of the interim answer */
} RecordUnknown;

extern bool record_same_bytes(const bytea *a, const bytea *b);
extern void record_not_written(void) pg_attribute_noreturn();
extern bool record_look(const RecordKey *key, RecordRow *row);
extern bool record_look_latest(const RecordKey *key, RecordRow *row);
extern bool record_try_lock_key(const RecordKey *key);
extern void record_unlock_key(const RecordKey *key);
extern bool record_try_lock_row(const RecordKey *key, RecordRow *row);
extern bool record_lock_row(const RecordKey *key, RecordRow *row);
extern int	record_lock_stale(text *operation, TimestampTz now, int max_rows, RecordKey *keys);
extern bool record_insert(const RecordKey *key, RecordRow *row, const RecordDecision *decision);
extern void record_own(const RecordKey *key, RecordRow *row, const RecordDecision *decision);
extern void record_mark_call(const RecordKey *key, const RecordDecision *decision);
extern void record_yield(const RecordKey *key, TimestampTz now);
extern void record_set_unknown(const RecordKey *key, const RecordUnknown *unknown);
extern void record_complete(const RecordKey *key, const RecordResponse *response);
extern void record_add_resolution(const RecordKey *key, int64 attempt, Jsonb *evidence,
								  const RecordResponse *response);
extern int64 record_delete_expired(TimestampTz now, int max_rows);
extern int64 record_drop_responses(TimestampTz now, int max_rows);

/* verdicts of operators, as facts.verdict has them */
#define VERDICT_COMPLETED		1
#define VERDICT_NOT_APPLIED		2

#endif							/* RECORD_STORE_H */
