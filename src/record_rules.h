/*-------------------------------------------------------------------------
 *
 * record_rules.h
 *		The rules of idempotency records: what may happen to a record, and when.
 *
 * Pure: nothing of the server, no clock, no memory.  A record and the time go
 * in, a decision comes out; what carries it out is in idem_record.c.
 *
 * Times are microseconds in whatever epoch the caller uses.  A time counts as
 * alive while it lies after now, and as over from then on.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_RULES_H
#define RECORD_RULES_H

#include <stdbool.h>
#include <stdint.h>

/* a time or a length that is not set */
#define RECORD_TIME_UNSET	INT64_MIN

/* stored states, and what each may become */
typedef enum RecordState
{
	RECORD_NONE,				/* no row: IN_PROGRESS by a claim */
	RECORD_IN_PROGRESS,			/* COMPLETED by its owner; UNKNOWN by a claim */
	RECORD_UNKNOWN,				/* COMPLETED by the attempt that made the call */
	RECORD_COMPLETED			/* none again, when it expires */
} RecordState;

/* what a rule needs to know of a record */
typedef struct RecordFacts
{
	RecordState state;
	bool		same_hash;		/* of this request and the stored one */
	bool		claimed_here;	/* by this very transaction */
	bool		call_marked_here;	/* by this very transaction */
	int64_t		attempt;
	int32_t		tries;			/* attempts that ended without an answer */
	int64_t		claimed_at;
	int64_t		lease_expires_at;
	int64_t		call_started_at;	/* or unset */
	int64_t		call_deadline;	/* or unset */
	int64_t		dedup_until;	/* or unset: the far side does not deduplicate */
	int64_t		response_expires_at;	/* or unset */
	int64_t		expires_at;		/* or unset: never */
} RecordFacts;

/* a claim as the caller asks for it, lengths in microseconds */
typedef struct RecordClaim
{
	int64_t		now;
	int64_t		lease;
	int64_t		call_timeout;	/* or unset: no external call is marked */
	int64_t		dedup_window;	/* 0: the far side does not deduplicate */
	int64_t		call_margin;
	int64_t		record_retention;
	int32_t		max_tries;
} RecordClaim;

/* outcomes of a claim; the names are those of the SQL function */
typedef enum RecordOutcome
{
	RECORD_OUTCOME_STARTED,
	RECORD_OUTCOME_RESUMED,
	RECORD_OUTCOME_IN_PROGRESS,
	RECORD_OUTCOME_ALREADY_YOURS,
	RECORD_OUTCOME_MISMATCH,
	RECORD_OUTCOME_REPLAY,
	RECORD_OUTCOME_RESULT_GONE,
	RECORD_OUTCOME_UNKNOWN
} RecordOutcome;

/* what is to be written for an outcome */
typedef enum RecordAction
{
	RECORD_READ_ONLY,			/* nothing */
	RECORD_INSERT,				/* a new row */
	RECORD_REPLACE,				/* the expired row, by a new record */
	RECORD_TAKE_OVER,			/* the row gets a new owner */
	RECORD_SET_UNKNOWN			/* the row becomes UNKNOWN */
} RecordAction;

typedef struct RecordDecision
{
	RecordOutcome outcome;
	RecordAction action;
	int32_t		retry_after;	/* seconds; 0: not given */

	/* values of the row after RECORD_INSERT, _REPLACE and _TAKE_OVER */
	int32_t		tries;
	bool		marks_call;		/* this claim marks a call */
	int64_t		lease_expires_at;
	int64_t		call_started_at;
	int64_t		call_deadline;
	int64_t		dedup_until;
	int64_t		expires_at;
} RecordDecision;

/* what a completion comes to */
typedef enum RecordCompletion
{
	RECORD_COMPLETE,			/* store the response */
	RECORD_REPEAT,				/* the same response is stored already */
	RECORD_ABSENT,				/* error: no record */
	RECORD_FENCED,				/* error: another attempt owns the record */
	RECORD_CALL_MARKED_HERE,	/* error: the call was marked in this transaction */
	RECORD_OTHER_RESPONSE,		/* error: completed with another response */
	RECORD_RESPONSE_EXPIRED		/* error: completed, the response is gone */
} RecordCompletion;

extern bool record_rules_runs(RecordOutcome outcome);
extern RecordDecision record_rules_claim(const RecordFacts *record, const RecordClaim *claim);
extern RecordDecision record_rules_claim_hidden(void);
extern RecordCompletion record_rules_complete(const RecordFacts *record, int64_t attempt,
											  bool same_response, int64_t now);

#endif							/* RECORD_RULES_H */
