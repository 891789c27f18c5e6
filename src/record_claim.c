/*-------------------------------------------------------------------------
 *
 * record_claim.c
 *		Idempotency records: a claim, in as many passes as it takes.
 *
 * record_rules.c decides, record_read.c and record_write.c do, record_answer.c
 * words the answers; this file makes them one claim that never waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_guc.h"
#include "idem_shared.h"
#include "idem_uuid.h"
#include "record_answer.h"
#include "record_claim.h"

/*
 * Each pass of a claim ends in a read or a win, unless a record went in between.
 * The bound is for rows that can be neither seen nor inserted.
 */
#define CLAIM_MAX_PASSES	10

/* HTTP status of the answer while nobody can know the outcome */
#define UNKNOWN_STATUS		202

/* Whether the request is the one that the record stands for. */
static bool
same_request(const Claim *claim)
{
	if (record_same_bytes(claim->row.request_hash, claim->request_hash))
		return true;
	for (int i = 0; i < claim->naccepted; i++)
		if (record_same_bytes(claim->row.request_hash, DatumGetByteaPP(claim->accepted[i])))
			return true;
	return false;
}

static int64
retention_or_setting(int64 retention)
{
	return retention != RECORD_TIME_UNSET ? retention : idem_record_retention * USECS_PER_MINUTE;
}

/* Applies the rules to the row as it was read last. */
RecordAction
record_claim_decide(Claim *claim)
{
	claim->row.facts.same_hash = same_request(claim);
	claim->claim.record_retention = retention_or_setting(claim->row.facts.state == RECORD_NONE
														 ? claim->retention : claim->row.retention);
	claim->decision = record_rules_claim(&claim->row.facts, &claim->claim);
	if (claim->decision.action == RECORD_REPLACE)
	{
		/* the new record is kept as this claim says, not as the expired one did */
		claim->claim.record_retention = retention_or_setting(claim->retention);
		claim->decision = record_rules_claim(&claim->row.facts, &claim->claim);
	}
	return claim->decision.action;
}

static void
answer_hidden(Claim *claim)
{
	claim->decision = record_rules_claim_hidden();
	claim->row.facts.state = RECORD_NONE;
}

/*
 * Before this time the sweep finds nothing to do with a record that is claimed
 * now, for its retentions count from its completion.
 */
static TimestampTz
sweep_at(const Claim *claim, int64 retention)
{
	return claim->claim.now + Min(retention_or_setting(retention), idem_response_retention * USECS_PER_MINUTE);
}

/* A new record for this claim, in the place of the row that is locked, if one is. */
static void
new_row(Claim *claim)
{
	ItemPointerData tid = claim->row.tid;

	record_row_none(&claim->row);
	claim->row.tid = tid;
	claim->row.request_hash = claim->request_hash;
	claim->row.operation = claim->operation;
	claim->row.context = claim->context;
	claim->row.retention = claim->retention;
	claim->row.sweep_at = sweep_at(claim, claim->retention);
	claim->row.created_at = claim->claim.now;
	claim->row.facts.claimed_at = claim->claim.now;
	idem_uuid7_make(&claim->row.resource_id);
}

/* Makes the record UNKNOWN, and says why. */
static void
set_unknown(Claim *claim)
{
	RecordUnknown unknown = {0};

	unknown.tries = claim->decision.tries;
	unknown.at = claim->claim.now;
	unknown.reason = cstring_to_text(claim->decision.tries >= claim->claim.max_tries
									 ? "as many attempts as idem.max_tries allows ended without an answer"
									 : "the lease was over, and the call can't be repeated");
	unknown.status = UNKNOWN_STATUS;
	record_set_unknown(&claim->row, &unknown);
}

/* Carries out what is decided on a row that is locked. */
void
record_claim_locked(Claim *claim)
{
	record_claim_decide(claim);
	switch (claim->decision.action)
	{
		case RECORD_REPLACE:
			new_row(claim);
			record_replace(&claim->key, &claim->row, &claim->decision);
			break;
		case RECORD_TAKE_OVER:
			claim->row.facts.claimed_at = claim->claim.now;
			claim->row.sweep_at = sweep_at(claim, claim->row.retention);
			record_take_over(&claim->row, &claim->decision);
			break;
		case RECORD_SET_UNKNOWN:
			set_unknown(claim);
			break;
		default:
			break;				/* decided otherwise since, nothing to write */
	}
}

void
record_claim_read_only_error(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot claim an idempotency key in a read-only transaction"),
			 errhint("Only keys that are in progress or answered can be looked up here.")));
}

/*
 * What a claim that would have to write comes to in a read-only transaction.
 * UNKNOWN can be said without writing it down.
 */
static void
claim_read_only(Claim *claim)
{
	if (claim->decision.action != RECORD_SET_UNKNOWN)
		record_claim_read_only_error();
	claim->decision.action = RECORD_READ_ONLY;
}

/*
 * Looks again with the lock on the key in hand.  Nobody else can make a record or
 * give it another owner now, so what is not there now is not there at all, and an
 * insert meets no row of an open transaction that it would have to wait for.
 * False: a row is there that the transaction's snapshot does not show.
 */
static bool
look_locked(Claim *claim)
{
	bool		shown = claim->row.facts.state != RECORD_NONE;
	RecordRow	latest;

	record_look_latest(&claim->key, &latest);
	if (!IsolationUsesXactSnapshot())
	{
		claim->row = latest;
		record_claim_decide(claim);
		return true;
	}
	return shown || latest.facts.state == RECORD_NONE;
}

/* Takes over, replaces or gives up a record that is there. */
static bool
claim_row(Claim *claim)
{
	if (!record_try_lock_row(&claim->key, &claim->row))
	{
		/* its owner is completing it, or it is being deleted */
		if (!record_look(&claim->key, &claim->row))
			return false;
		if (record_claim_decide(claim) != RECORD_READ_ONLY)
			answer_hidden(claim);
		return true;
	}
	record_claim_locked(claim);
	return true;
}

/*
 * One pass of a claim: look, lock, write.  False: the record went in between,
 * look again.
 *
 * The lock on the key stands for a row that is being made and can't be seen
 * yet.  Whoever can't have it looks once more, since its holder may have
 * committed by now, and else hears IN_PROGRESS.
 */
static bool
claim_pass(Claim *claim)
{
	record_look(&claim->key, &claim->row);
	if (record_claim_decide(claim) == RECORD_READ_ONLY)
		return true;
	if (XactReadOnly)
	{
		claim_read_only(claim);
		return true;
	}

	if (!claim->key_locked)
		claim->key_locked = record_try_lock_key(&claim->key);
	if (!claim->key_locked)
	{
		record_look(&claim->key, &claim->row);
		if (record_claim_decide(claim) != RECORD_READ_ONLY)
			answer_hidden(claim);
		return true;
	}

	if (!look_locked(claim))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update")));
	switch (claim->decision.action)
	{
		case RECORD_READ_ONLY:
			return true;
		case RECORD_INSERT:
			new_row(claim);
			return record_insert(&claim->key, &claim->row, &claim->decision);
		default:
			return claim_row(claim);
	}
}

/* Claims, in as many passes as it takes. */
void
record_claim_run(Claim *claim)
{
	int			pass = 0;

	while (!claim_pass(claim))
	{
		CHECK_FOR_INTERRUPTS();
		if (++pass == CLAIM_MAX_PASSES)
			record_not_written();
	}

	if (claim->decision.action == RECORD_READ_ONLY)
	{
		/* nothing of ours that others could not see */
		if (claim->key_locked)
			record_unlock_key(&claim->key);
		return;
	}

	/* the caller will act on it: it must survive a crash */
	ForceSyncCommit();
	IDEM_TEST_POINT("claim-inserted");
}

/* The columns of idem.idem_claim. */
void
record_claim_columns(Claim *claim, Datum *values, bool *nulls)
{
	RecordDecision *decision = &claim->decision;
	bool		run = record_rules_runs(decision->outcome);
	bool		hidden = claim->row.facts.state == RECORD_NONE || decision->outcome == RECORD_OUTCOME_MISMATCH;
	int64		expires_at = run ? decision->expires_at : hidden ? RECORD_TIME_UNSET : claim->row.facts.expires_at;

	memset(values, 0, sizeof(Datum) * CLAIM_COLUMNS);
	memset(nulls, true, sizeof(bool) * CLAIM_COLUMNS);

#define SET(i, datum) (values[i] = (datum), nulls[i] = false)
	SET(0, CStringGetTextDatum(record_outcome_name(decision->outcome)));
	SET(1, BoolGetDatum(run));
	SET(2, BoolGetDatum(decision->action != RECORD_READ_ONLY));
	if (run)
	{
		SET(3, Int64GetDatum(claim->row.facts.attempt));
		SET(4, UUIDPGetDatum(&claim->row.resource_id));
		if (decision->marks_call)
			SET(5, TimestampTzGetDatum(decision->call_deadline));
		if (claim->row.context != NULL)
			SET(6, JsonbPGetDatum(claim->row.context));
	}
	else
	{
		RecordAnswer answer = record_answer(decision->outcome, decision->retry_after, &claim->row);

		SET(9, Int32GetDatum(answer.status));
		SET(10, JsonbPGetDatum(answer.headers));
		if (answer.body != NULL)
			SET(11, PointerGetDatum(answer.body));
	}
	if (decision->retry_after > 0)
		SET(7, Int32GetDatum(decision->retry_after));
	if (expires_at != RECORD_TIME_UNSET && decision->action != RECORD_SET_UNKNOWN)
		SET(8, TimestampTzGetDatum(expires_at));
	if (decision->outcome == RECORD_OUTCOME_REPLAY)
		SET(12, BoolGetDatum(claim->row.response_body != NULL));
	if (decision->outcome == RECORD_OUTCOME_RESULT_GONE)
		SET(12, BoolGetDatum(false));
#undef SET
}

