/*-------------------------------------------------------------------------
 *
 * record_claim.h
 *		Idempotency records: a claim, in as many passes as it takes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_CLAIM_H
#define RECORD_CLAIM_H

#include "record_store.h"

/* columns of idem.idem_claim */
#define CLAIM_COLUMNS 13

/* a claim and how it went */
typedef struct Claim
{
	RecordKey	key;
	bytea	   *request_hash;
	int			naccepted;
	Datum	   *accepted;		/* other hashes of the same request */
	text	   *operation;
	Jsonb	   *context;
	int64		retention;		/* or unset: the setting's */
	RecordClaim claim;

	bool		key_locked;
	RecordDecision decision;
	RecordRow	row;			/* state RECORD_NONE: can't be seen */
} Claim;

extern RecordAction record_claim_decide(Claim *claim);
extern void record_claim_locked(Claim *claim);
extern void record_claim_run(Claim *claim);
extern void record_claim_columns(Claim *claim, Datum *values, bool *nulls);
pg_noreturn extern void record_claim_read_only_error(void);

#endif							/* RECORD_CLAIM_H */
