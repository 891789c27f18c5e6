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

/* Whether the response of a completed record is no longer kept. */
static bool
response_gone(const RecordFacts *record, int64_t now)
{
	return !record->has_response ||
		(is_set(record->response_expires_at) && record->response_expires_at <= now);
}

/* Attempts that ended without an answer or yield, when the present one has. */
static int32_t
ended_tries(const RecordFacts *record)
{
	return record->yielded ? record->tries : record->tries + 1;
}

/*
 * Whether the call of a record may be made once more and end at call_ends: none
 * was made, or the far side still knows the key then.
 */
static bool
may_call(const RecordFacts *record, int64_t call_ends)
{
	if (!is_set(record->call_started_at))
		return true;
	return is_set(record->dedup_until) && record->dedup_until > call_ends;
}

/* Whether the work of a record whose lease is over may be run again. */
static bool
may_resume(const RecordFacts *record, const RecordClaim *claim)
{
	return ended_tries(record) < claim->max_tries &&
		may_call(record, claim->now + (is_set(claim->call_timeout) ? claim->call_timeout : 0));
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
 * Marks a call that starts now.  dedup_until stays once it is set, since the far
 * side counts from the first call.  A record whose call may have been made is
 * not forgotten.
 */
static void
mark_call(RecordDecision *decision, int64_t now, int64_t timeout, int64_t dedup_window, int64_t margin)
{
	bool		first_call = !is_set(decision->call_started_at);

	decision->marks_call = true;
	decision->call_started_at = now;
	decision->call_deadline = now + timeout;
	decision->lease_expires_at = later(decision->lease_expires_at, decision->call_deadline + margin);
	if (first_call && dedup_window > 0)
		decision->dedup_until = now + dedup_window;
	decision->expires_at = RECORD_TIME_UNSET;
}

/*
 * The row of a claim that is won.  before is the record that is taken over, or
 * NULL: its call mark stays when the new attempt marks none, since that call
 * may have been made.
 */
static RecordDecision
won(RecordOutcome outcome, RecordAction action, const RecordFacts *before, const RecordClaim *claim)
{
	RecordDecision decision = answer(outcome, 0);

	decision.action = action;
	decision.tries = before ? ended_tries(before) : 0;
	decision.lease_expires_at = claim->now + claim->lease;
	decision.call_started_at = before ? before->call_started_at : RECORD_TIME_UNSET;
	decision.call_deadline = before ? before->call_deadline : RECORD_TIME_UNSET;
	decision.dedup_until = before ? before->dedup_until : RECORD_TIME_UNSET;
	decision.expires_at = is_set(decision.call_started_at) ? RECORD_TIME_UNSET
		: decision.lease_expires_at + claim->record_retention;

	if (is_set(claim->call_timeout))
		mark_call(&decision, claim->now, claim->call_timeout, claim->dedup_window, claim->call_margin);
	return decision;
}

/* A claim of a record that is in progress, for the same request. */
static RecordDecision
claim_in_progress(const RecordFacts *record, const RecordClaim *claim)
{
	RecordDecision decision;

	/* what nobody else can see is not taken over from oneself, unless given up */
	if (record->lease_expires_at > claim->now || (record->claimed_here && !record->yielded))
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
	decision.tries = ended_tries(record);
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
						  pause_seconds(earlier(claim->now - record->unknown_at, UNKNOWN_MAX_PAUSE)));
		default:
			if (response_gone(record, claim->now))
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
 * Whether a record is one that a crashed attempt left: a sweeper may claim it.
 * The claim itself is decided by record_rules_claim.
 */
bool
record_rules_stale(const RecordFacts *record, int64_t now)
{
	return record->state == RECORD_IN_PROGRESS && !expired(record, now) &&
		!record->claimed_here && record->lease_expires_at <= now;
}

/* The fence, which comes before all else. */
static RecordVerdict
fence(const RecordFacts *record, int64_t attempt, int64_t now)
{
	if (record->state == RECORD_NONE || expired(record, now))
		return RECORD_ABSENT;
	return record->attempt == attempt ? RECORD_OK : RECORD_FENCED;
}

/*
 * Decides the mark of a call.  The row gets decision's times.  An owner whose
 * lease is alive knows what it has called, and may mark again what the far side
 * does not deduplicate.
 */
RecordVerdict
record_rules_before_call(const RecordFacts *record, int64_t attempt,
						 const RecordCall *call, RecordDecision *decision)
{
	RecordVerdict verdict = fence(record, attempt, call->now);
	int64_t		call_ends = call->now + call->timeout;
	bool		alive = record->lease_expires_at > call->now;

	if (verdict != RECORD_OK)
		return verdict;
	if (record->state == RECORD_UNKNOWN)
		return RECORD_IS_UNKNOWN;
	if (record->state == RECORD_COMPLETED)
		return RECORD_IS_COMPLETED;
	if (is_set(record->dedup_until) && !may_call(record, call_ends))
		return RECORD_PAST_DEDUP;
	if (!alive && (!may_call(record, call_ends) || ended_tries(record) >= call->max_tries))
		return RECORD_LEASE_OVER;

	*decision = answer(RECORD_OUTCOME_STARTED, 0);
	decision->lease_expires_at = record->lease_expires_at;
	decision->call_started_at = record->call_started_at;
	decision->dedup_until = record->dedup_until;
	mark_call(decision, call->now, call->timeout, call->dedup_window, call->call_margin);
	return RECORD_OK;
}

/*
 * Decides a completion.  same_response says whether the response given equals
 * the one stored.
 */
RecordVerdict
record_rules_complete(const RecordFacts *record, int64_t attempt, bool same_response, int64_t now)
{
	RecordVerdict verdict = fence(record, attempt, now);

	if (verdict != RECORD_OK)
		return verdict;
	if (record->state == RECORD_COMPLETED)
	{
		if (response_gone(record, now))
			return RECORD_RESPONSE_EXPIRED;
		return same_response && record->verdict == 0 ? RECORD_REPEAT : RECORD_OTHER_RESPONSE;
	}
	return record->call_marked_here ? RECORD_CALL_MARKED_HERE : RECORD_OK;
}

/* Decides whether an attempt may say that its outcome can't be known. */
RecordVerdict
record_rules_mark_unknown(const RecordFacts *record, int64_t attempt, int64_t now)
{
	RecordVerdict verdict = fence(record, attempt, now);

	if (verdict != RECORD_OK)
		return verdict;
	if (record->state == RECORD_COMPLETED)
		return RECORD_IS_COMPLETED;
	return record->state == RECORD_UNKNOWN ? RECORD_REPEAT : RECORD_OK;
}

/* Decides whether an attempt may end its lease. */
RecordVerdict
record_rules_yield(const RecordFacts *record, int64_t attempt, int32_t max_tries, int64_t now)
{
	RecordVerdict verdict = fence(record, attempt, now);

	if (verdict != RECORD_OK)
		return verdict;
	if (record->state == RECORD_UNKNOWN)
		return RECORD_IS_UNKNOWN;
	if (record->state == RECORD_COMPLETED)
		return RECORD_IS_COMPLETED;
	if (record->lease_expires_at > now)
		return RECORD_OK;
	return may_call(record, now) && ended_tries(record) < max_tries ? RECORD_REPEAT : RECORD_LEASE_OVER;
}

/*
 * Decides an operator's verdict (a number that is not 0) on a record.  It has to
 * wait until the call that nobody heard of can no longer be on its way.
 */
RecordVerdict
record_rules_resolve(const RecordFacts *record, int verdict, int64_t call_grace, int64_t now)
{
	if (record->state == RECORD_NONE || expired(record, now))
		return RECORD_ABSENT;
	if (record->state == RECORD_COMPLETED)
	{
		if (record->verdict == 0)
			return RECORD_IS_COMPLETED;
		if (response_gone(record, now))
			return RECORD_RESPONSE_EXPIRED;
		return record->verdict == verdict ? RECORD_REPEAT : RECORD_OTHER_VERDICT;
	}
	if (record->state != RECORD_UNKNOWN)
		return RECORD_NOT_UNKNOWN;
	if (is_set(record->call_deadline) && record->call_deadline + call_grace > now)
		return RECORD_TOO_EARLY;
	return RECORD_OK;
}

/* Decides what the sweep does. */
RecordSweep
record_rules_sweep(const RecordFacts *record, int64_t now)
{
	if (record->state == RECORD_NONE || record->state == RECORD_UNKNOWN)
		return RECORD_KEEP;
	if (expired(record, now))
		return RECORD_DELETE;
	if (record->state == RECORD_COMPLETED && record->has_response && response_gone(record, now))
		return RECORD_DROP_RESPONSE;
	return RECORD_KEEP;
}
