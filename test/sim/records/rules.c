/*-------------------------------------------------------------------------
 *
 * rules.c
 *		The rules as the simulated functions ask them.
 *
 * What decides is src/record_rules.c, as the server runs it.  A build with a
 * deliberate fault bends what goes in or comes out; the others add nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

/* Makes the times of a call fit for one that the far side would not repeat. */
static void
forget_call(RecordFacts *facts)
{
	facts->call_started_at = RECORD_TIME_UNSET;
	facts->call_deadline = RECORD_TIME_UNSET;
	facts->dedup_until = RECORD_TIME_UNSET;
}

/* Bends what a claim knows of a record. */
static void
bend_claim(RecordFacts *facts, const RecordClaim *claim)
{
	if (facts->state == RECORD_NONE)
		return;
	if (FAULT == FAULT_blind_to_hash && facts->state == RECORD_COMPLETED)
		facts->same_hash = true;
	if (FAULT == FAULT_unknown_runs && facts->state == RECORD_UNKNOWN)
	{
		facts->state = RECORD_IN_PROGRESS;
		forget_call(facts);
	}
	if (FAULT == FAULT_forget_dedup && !is_set(facts->dedup_until))
		facts->call_started_at = RECORD_TIME_UNSET;
	if (FAULT == FAULT_dedup_start_only && is_set(facts->dedup_until) && is_set(claim->call_timeout))
		facts->dedup_until += claim->call_timeout;
	if (FAULT == FAULT_lease_over_early)
		facts->lease_expires_at -= TICK;
	if (FAULT == FAULT_lease_over_late)
		facts->lease_expires_at += 1;
	if (FAULT == FAULT_call_expires && facts->state == RECORD_IN_PROGRESS)
		facts->expires_at = facts->lease_expires_at + claim->record_retention;
}

/* Bends what a claim comes to. */
static void
bend_claimed(RecordDecision *decision, const RecordFacts *facts, const RecordClaim *claim)
{
	if (FAULT == FAULT_lease_ignores_call && decision->marks_call)
		decision->lease_expires_at = claim->now + claim->lease;
	if (FAULT == FAULT_dedup_moves && decision->marks_call && claim->dedup_window > 0)
		decision->dedup_until = claim->now + claim->dedup_window;
	if (FAULT == FAULT_dedup_start_only && decision->action == RECORD_TAKE_OVER &&
		is_set(decision->dedup_until) && is_set(claim->call_timeout))
		decision->dedup_until -= claim->call_timeout;
	if (FAULT == FAULT_forget_dedup && decision->action == RECORD_TAKE_OVER && !decision->marks_call)
		decision->expires_at = RECORD_TIME_UNSET;
	if (FAULT == FAULT_takeover_forgets_call && decision->action == RECORD_TAKE_OVER &&
		is_set(facts->call_started_at) && !decision->marks_call)
	{
		decision->call_started_at = RECORD_TIME_UNSET;
		decision->call_deadline = RECORD_TIME_UNSET;
		decision->dedup_until = RECORD_TIME_UNSET;
	}
}

/* Decides a claim. */
RecordDecision
rules_claim(const Row *row, const RecordClaim *claim, int hash)
{
	RecordFacts facts = row->facts;
	RecordDecision decision;

	facts.same_hash = row->hash == hash;
	if (FAULT != FAULT_none)
		bend_claim(&facts, claim);
	decision = record_rules_claim(&facts, claim);
	if (FAULT != FAULT_none)
		bend_claimed(&decision, &facts, claim);
	return decision;
}

RecordVerdict
rules_before_call(const Row *row, int64_t attempt, const RecordCall *call, RecordDecision *decision)
{
	RecordFacts facts = row->facts;
	RecordVerdict verdict;

	if (FAULT == FAULT_dedup_start_only && is_set(facts.dedup_until))
		facts.dedup_until += call->timeout;
	verdict = record_rules_before_call(&facts, attempt, call, decision);
	if (FAULT == FAULT_dedup_start_only && verdict == RECORD_OK && is_set(row->facts.dedup_until))
		decision->dedup_until = row->facts.dedup_until;
	if (FAULT == FAULT_lease_ignores_call && verdict == RECORD_OK)
		decision->lease_expires_at = facts.lease_expires_at;
	if (FAULT == FAULT_dedup_moves && verdict == RECORD_OK && call->dedup_window > 0)
		decision->dedup_until = call->now + call->dedup_window;
	return verdict;
}

RecordVerdict
rules_complete(const Row *row, int64_t attempt, int64_t response, int64_t now)
{
	RecordVerdict verdict;

	if (FAULT == FAULT_skip_fence && row->facts.state != RECORD_NONE)
		attempt = row->facts.attempt;
	verdict = record_rules_complete(&row->facts, attempt, row->response == response, now);
	if (FAULT == FAULT_complete_marked && verdict == RECORD_CALL_MARKED_HERE)
		return RECORD_OK;
	if (FAULT == FAULT_other_response && verdict == RECORD_OTHER_RESPONSE)
		return RECORD_OK;
	return verdict;
}

RecordVerdict
rules_resolve(const Row *row, int verdict, int64_t grace, int64_t now)
{
	RecordVerdict result = record_rules_resolve(&row->facts, verdict, grace, now);

	if (FAULT == FAULT_resolve_early && result == RECORD_TOO_EARLY)
		return RECORD_OK;
	if (FAULT == FAULT_resolve_never && result == RECORD_OK)
		return RECORD_TOO_EARLY;
	return result;
}

RecordSweep
rules_sweep(const Row *row, int64_t now)
{
	RecordFacts facts = row->facts;

	if (FAULT == FAULT_sweep_never)
		return RECORD_KEEP;
	if (FAULT == FAULT_unknown_expires && facts.state == RECORD_UNKNOWN &&
		facts.lease_expires_at + 20 * TICK <= now)
		return RECORD_DELETE;
	return record_rules_sweep(&facts, now);
}

const char *
outcome_name(RecordOutcome outcome)
{
	static const char *const names[] = {"STARTED", "RESUMED", "IN_PROGRESS", "ALREADY_YOURS",
	"MISMATCH", "REPLAY", "RESULT_GONE", "UNKNOWN"};

	return names[outcome];
}

const char *
verdict_name(RecordVerdict verdict)
{
	static const char *const names[] = {"ok", "done before", "refused: no record",
		"refused: another attempt owns it", "refused: the call was marked here", "refused: it is UNKNOWN",
		"refused: it is completed", "refused: it has another response", "refused: its response expired",
		"refused: the lease is over", "refused: past the far side's memory", "refused: it is not UNKNOWN",
	"refused: another verdict", "refused: too early"};

	return names[verdict];
}

const char *
state_name(RecordState state)
{
	static const char *const names[] = {"none", "in progress", "UNKNOWN", "completed"};

	return names[state];
}
