/*-------------------------------------------------------------------------
 *
 * record_rules.h
 *		The rules of idempotency records: what may happen to a record, and when.
 *
 * Pure: nothing of the server, no clock, no memory.  A record and the time go
 * in, a decision comes out; what carries it out is in record_claim.c and idem_owner.c.
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
	int32_t		tries;			/* attempts that ended without an answer or yield */
	bool		yielded;		/* the present attempt gave its lease up */
	int64_t		claimed_at;
	int64_t		lease_expires_at;
	int64_t		call_started_at;	/* or unset */
	int64_t		call_deadline;	/* or unset */
	int64_t		dedup_until;	/* or unset: the far side does not deduplicate */
	int64_t		response_expires_at;	/* or unset */
	int64_t		expires_at;		/* or unset: never */
	int64_t		unknown_at;		/* or unset */
	bool		has_response;	/* its body, or what stands for it, is still there */
	int			verdict;		/* of an operator; 0: none */
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

/* an external call that an attempt is about to make, lengths in microseconds */
typedef struct RecordCall
{
	int64_t		now;
	int64_t		timeout;
	int64_t		dedup_window;	/* 0: the far side does not deduplicate */
	int64_t		call_margin;
	int32_t		max_tries;
} RecordCall;

/* what the functions of a record's owner, and of an operator, come to */
typedef enum RecordVerdict
{
	RECORD_OK,					/* do it */
	RECORD_REPEAT,				/* it is done already: nothing to write */

	/* errors: the attempt is not, or no longer, the owner */
	RECORD_ABSENT,				/* no record */
	RECORD_FENCED,				/* another attempt owns the record */

	/* errors: the record's state does not allow it */
	RECORD_CALL_MARKED_HERE,	/* the call was marked in this transaction */
	RECORD_IS_UNKNOWN,
	RECORD_IS_COMPLETED,
	RECORD_OTHER_RESPONSE,		/* completed with another response */
	RECORD_RESPONSE_EXPIRED,	/* completed, the response is gone */
	RECORD_LEASE_OVER,			/* and it can't be resumed */
	RECORD_PAST_DEDUP,			/* the call would end after the far side forgot the key */
	RECORD_NOT_UNKNOWN,			/* nothing to resolve */
	RECORD_OTHER_VERDICT,		/* resolved otherwise */
	RECORD_TOO_EARLY			/* the call may still be on its way */
} RecordVerdict;

/* what the sweep does to a record */
typedef enum RecordSweep
{
	RECORD_KEEP,
	RECORD_DROP_RESPONSE,		/* the response is no longer kept: a tombstone stays */
	RECORD_DELETE				/* the key counts as never used */
} RecordSweep;

extern bool record_rules_runs(RecordOutcome outcome);
extern RecordDecision record_rules_claim(const RecordFacts *record, const RecordClaim *claim);
extern RecordDecision record_rules_claim_hidden(void);
extern bool record_rules_stale(const RecordFacts *record, int64_t now);
extern RecordVerdict record_rules_before_call(const RecordFacts *record, int64_t attempt,
											  const RecordCall *call, RecordDecision *decision);
extern RecordVerdict record_rules_complete(const RecordFacts *record, int64_t attempt,
										   bool same_response, int64_t now);
extern RecordVerdict record_rules_mark_unknown(const RecordFacts *record, int64_t attempt, int64_t now);
extern RecordVerdict record_rules_yield(const RecordFacts *record, int64_t attempt,
										int32_t max_tries, int64_t now);
extern RecordVerdict record_rules_resolve(const RecordFacts *record, int verdict,
										  int64_t call_grace, int64_t now);
extern RecordSweep record_rules_sweep(const RecordFacts *record, int64_t now);

#endif							/* RECORD_RULES_H */
