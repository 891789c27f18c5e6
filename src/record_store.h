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
	TimestampTz completed_at;
	TimestampTz response_expires_at;
	TimestampTz expires_at;
} RecordResponse;

extern bool record_look(const RecordKey *key, RecordRow *row);
extern bool record_look_latest(const RecordKey *key, RecordRow *row);
extern bool record_try_lock_key(const RecordKey *key);
extern void record_unlock_key(const RecordKey *key);
extern bool record_try_lock_row(const RecordKey *key, RecordRow *row);
extern bool record_lock_row(const RecordKey *key, RecordRow *row);
extern bool record_insert(const RecordKey *key, RecordRow *row, const RecordDecision *decision);
extern void record_own(const RecordKey *key, RecordRow *row, const RecordDecision *decision);
extern void record_set_unknown(const RecordKey *key, const RecordDecision *decision);
extern void record_complete(const RecordKey *key, const RecordResponse *response);

#endif							/* RECORD_STORE_H */
