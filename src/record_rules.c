/*-------------------------------------------------------------------------
 *
 * record_rules.c
 *		The rules of idempotency records: what may happen to a record, and when.
 *
 *-------------------------------------------------------------------------
 */
#include "record_rules.h"

#include <stddef.h>

#define USECS_PER_SECOND	INT64_C(1000000)

/* longest pause that a client is asked for while nobody can know the outcome */
#define UNKNOWN_MAX_PAUSE	(60 * USECS_PER_SECOND)

static int64_t
later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static bool
is_set(int64_t time)
{
	return time != RECORD_TIME_UNSET;
}

/* Seconds to wait before a retry: one at least, and whole. */
static int32_t
pause_seconds(int64_t usec)
{
	return usec <= USECS_PER_SECOND ? 1
		: (int32_t) ((usec + USECS_PER_SECOND - 1) / USECS_PER_SECOND);
}

/* Whether a record counts as never there. */
static bool
expired(const RecordFacts *record, int64_t now)
{
	return is_set(record->expires_at) && record->expires_at <= now;
}

/*
 * Whether the work of a record whose lease is over may be run again: no call
 * was started, or the far side will still know the key when a new call ends.
 */
static bool
may_resume(const RecordFacts *record, const RecordClaim *claim)
{
	int64_t		call_ends;

	if (record->tries + 1 >= claim->max_tries)
		return false;
	if (!is_set(record->call_started_at))
		return true;
	if (!is_set(record->dedup_until))
		return false;
	call_ends = claim->now + (is_set(claim->call_timeout) ? claim->call_timeout : 0);
	return record->dedup_until > call_ends;
}

static RecordDecision
answer(RecordOutcome outcome, int32_t retry_after)
{
	RecordDecision decision = {0};

	decision.outcome = outcome;
	decision.action = RECORD_READ_ONLY;
	decision.retry_after = retry_after;
	return decision;
}

/*
 * The row of a claim that is won.  before is the record that is taken over, or
 * NULL: its call mark stays when the new attempt marks none, since that call
 * may have been made, and dedup_until stays in any case, since the far side
 * counts from the first call.
 */
static RecordDecision
won(RecordOutcome outcome, RecordAction action, const RecordFacts *before, const RecordClaim *claim)
{
	RecordDecision decision = answer(outcome, 0);

	decision.action = action;
	decision.tries = before ? before->tries + 1 : 0;
	decision.lease_expires_at = claim->now + claim->lease;
	decision.call_started_at = before ? before->call_started_at : RECORD_TIME_UNSET;
	decision.call_deadline = before ? before->call_deadline : RECORD_TIME_UNSET;
	decision.dedup_until = before ? before->dedup_until : RECORD_TIME_UNSET;

	if (is_set(claim->call_timeout))
	{
		bool		first_call = !is_set(decision.call_started_at);

		decision.marks_call = true;
		decision.call_started_at = claim->now;
		decision.call_deadline = claim->now + claim->call_timeout;
		decision.lease_expires_at = later(decision.lease_expires_at,
										  decision.call_deadline + claim->call_margin);
		if (first_call && claim->dedup_window > 0)
			decision.dedup_until = claim->now + claim->dedup_window;
	}

	/* a record whose call may have been made is not forgotten */
	decision.expires_at = is_set(decision.call_started_at) ? RECORD_TIME_UNSET
		: decision.lease_expires_at + claim->record_retention;
	return decision;
}

/* A claim of a record that is in progress, for the same request. */
static RecordDecision
claim_in_progress(const RecordFacts *record, const RecordClaim *claim)
{
	RecordDecision decision;

	/* a record that nobody else can see is not taken over from oneself */
	if (record->lease_expires_at > claim->now || record->claimed_here)
	{
		int64_t		left = record->lease_expires_at - claim->now;
		int64_t		elapsed = claim->now - record->claimed_at;

		return answer(record->claimed_here ? RECORD_OUTCOME_ALREADY_YOURS : RECORD_OUTCOME_IN_PROGRESS,
					  pause_seconds(earlier(left, elapsed)));
	}
	if (may_resume(record, claim))
		return won(RECORD_OUTCOME_RESUMED, RECORD_TAKE_OVER, record, claim);

	decision = answer(RECORD_OUTCOME_UNKNOWN, 1);
	decision.action = RECORD_SET_UNKNOWN;
	decision.tries = record->tries + 1;
	return decision;
}

/* Whether an outcome lets the caller do the work. */
bool
record_rules_runs(RecordOutcome outcome)
{
	return outcome == RECORD_OUTCOME_STARTED || outcome == RECORD_OUTCOME_RESUMED;
}

/* Decides a claim. */
RecordDecision
record_rules_claim(const RecordFacts *record, const RecordClaim *claim)
{
	if (record->state == RECORD_NONE)
		return won(RECORD_OUTCOME_STARTED, RECORD_INSERT, NULL, claim);
	if (expired(record, claim->now))
		return won(RECORD_OUTCOME_STARTED, RECORD_REPLACE, NULL, claim);
	if (!record->same_hash)
		return answer(RECORD_OUTCOME_MISMATCH, 0);

	switch (record->state)
	{
		case RECORD_IN_PROGRESS:
			return claim_in_progress(record, claim);
		case RECORD_UNKNOWN:
			return answer(RECORD_OUTCOME_UNKNOWN,
						  pause_seconds(earlier(claim->now - record->claimed_at, UNKNOWN_MAX_PAUSE)));
		default:
			if (is_set(record->response_expires_at) && record->response_expires_at <= claim->now)
				return answer(RECORD_OUTCOME_RESULT_GONE, 0);
			return answer(RECORD_OUTCOME_REPLAY, 0);
	}
}

/*
 * Decides a claim when another transaction is making or changing the record at
 * this moment and its row can't be seen or locked.
 */
RecordDecision
record_rules_claim_hidden(void)
{
	return answer(RECORD_OUTCOME_IN_PROGRESS, 1);
}

/*
 * Decides a completion.  same_response says whether the response given equals
 * the one stored.  The fence comes first.
 */
RecordCompletion
record_rules_complete(const RecordFacts *record, int64_t attempt, bool same_response, int64_t now)
{
	if (record->state == RECORD_NONE || expired(record, now))
		return RECORD_ABSENT;
	if (record->attempt != attempt)
		return RECORD_FENCED;
	if (record->state == RECORD_COMPLETED)
	{
		if (is_set(record->response_expires_at) && record->response_expires_at <= now)
			return RECORD_RESPONSE_EXPIRED;
		return same_response ? RECORD_REPEAT : RECORD_OTHER_RESPONSE;
	}
	return record->call_marked_here ? RECORD_CALL_MARKED_HERE : RECORD_COMPLETE;
}
