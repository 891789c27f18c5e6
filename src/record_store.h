/*-------------------------------------------------------------------------
 *
 * record_store.h
 *		The table of idempotency records: looking, locking, writing.
 *
 * All functions run inside SPI_connect; what they give back lives in SPI's
 * memory context.  Each look, lock or statement takes a new snapshot where the
 * isolation level allows it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_STORE_H
#define RECORD_STORE_H

#include "record_row.h"

/* who and which */
typedef struct RecordKey
{
	text	   *principal_id;
	text	   *idempotency_key;
} RecordKey;

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

/* what a sweep came to: numbers of records */
typedef struct RecordSwept
{
	int64		deleted;
	int64		dropped;		/* their responses, that is */
	int64		due;			/* of all that had something to sweep */
} RecordSwept;

/* record_read.c */
extern bool record_same_bytes(const bytea *a, const bytea *b);
extern bool record_look(const RecordKey *key, RecordRow *row);
extern bool record_look_latest(const RecordKey *key, RecordRow *row);
extern bool record_try_lock_row(const RecordKey *key, RecordRow *row);
extern bool record_lock_row(const RecordKey *key, RecordRow *row);
extern bool record_try_lock_key(const RecordKey *key);
extern void record_unlock_key(const RecordKey *key);

/* record_write.c */
pg_noreturn extern void record_not_written(void);
extern bool record_insert(const RecordKey *key, RecordRow *row, const RecordDecision *decision);
extern void record_replace(const RecordKey *key, RecordRow *row, const RecordDecision *decision);
extern void record_take_over(RecordRow *row, const RecordDecision *decision);
extern void record_mark_call(RecordRow *row, const RecordDecision *decision);
extern void record_yield(RecordRow *row, TimestampTz now);
extern void record_set_unknown(RecordRow *row, const RecordUnknown *unknown);
extern void record_complete(RecordRow *row, const RecordResponse *response);
extern void record_add_resolution(const RecordKey *key, int64 attempt, Jsonb *evidence,
								  const RecordResponse *response);

/* record_due.c */
extern int	record_lock_stale(text *operation, TimestampTz now, int max_rows, RecordKey *keys);
extern RecordSwept record_sweep(TimestampTz now, int max_rows);

#endif							/* RECORD_STORE_H */
