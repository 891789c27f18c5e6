/*-------------------------------------------------------------------------
 *
 * idem_record.c
 *		Idempotency records: claiming a key, completing it.
 *
 * record_rules.c decides, record_store.c reads and writes, record_answer.c
 * words the answers; this file makes them one call that never waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_errors.h"
#include "idem_guc.h"
#include "idem_headers.h"
#include "idem_retry.h"
#include "idem_shared.h"
#include "idem_uuid.h"
#include "record_answer.h"
#include "record_store.h"

#define USECS_PER_MS		INT64CONST(1000)

#define HASH_MIN_BYTES		16
#define HASH_MAX_BYTES		64

#define ANSWERED_HINT		"Roll back. The request already has its answer: idem_try_insert gives it."

/*
 * Each pass of a claim ends in a read or a win, unless another's claim ended in
 * between.  The bound is for rows that can be neither seen nor inserted.
 */
#define CLAIM_MAX_PASSES	10

/* a claim and how it went */
typedef struct Claim
{
	RecordKey	key;
	bytea	   *request_hash;
	text	   *operation;
	Jsonb	   *context;
	RecordClaim claim;

	bool		key_locked;
	RecordDecision decision;
	RecordRow	row;			/* state RECORD_NONE: can't be seen */
} Claim;

static bool
same_bytes(const bytea *a, const bytea *b)
{
	return a != NULL && b != NULL &&
		VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* The arguments of idem_try_insert. */
static void
claim_args(FunctionCallInfo fcinfo, Claim *claim)
{
	int64		usec;
	int			hash_bytes;

	memset(claim, 0, sizeof(*claim));
	claim->key.principal_id = idem_name_arg(fcinfo, 0, "principal_id");
	claim->key.idempotency_key = idem_name_arg(fcinfo, 1, "idempotency_key");
	idem_require_arg(fcinfo, 2, "request_hash");
	claim->request_hash = PG_GETARG_BYTEA_PP(2);
	hash_bytes = VARSIZE_ANY_EXHDR(claim->request_hash);
	if (hash_bytes < HASH_MIN_BYTES || hash_bytes > HASH_MAX_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("request_hash has %d bytes", hash_bytes),
				 errdetail("It must have %d to %d.", HASH_MIN_BYTES, HASH_MAX_BYTES),
				 errhint("Use idem_hash, or the whole digest of another hash function.")));
	claim->operation = PG_ARGISNULL(3) ? NULL : PG_GETARG_TEXT_PP(3);
	claim->claim.lease = idem_interval_arg(fcinfo, 4, "lease", 1, &usec)
		? usec : idem_lease * USECS_PER_MS;
	claim->claim.call_timeout = idem_interval_arg(fcinfo, 5, "call_timeout", 1, &usec)
		? usec : RECORD_TIME_UNSET;
	claim->claim.dedup_window = idem_interval_arg(fcinfo, 6, "dedup_window", 0, &usec) ? usec : 0;
	claim->context = PG_ARGISNULL(7) ? NULL : PG_GETARG_JSONB_P(7);

	claim->claim.now = GetCurrentTimestamp();
	claim->claim.call_margin = idem_call_margin * USECS_PER_MS;
	claim->claim.record_retention = idem_record_retention * USECS_PER_MINUTE;
	claim->claim.max_tries = idem_max_tries;
}

/* Applies the rules to the row as it was read last. */
static RecordAction
decide(Claim *claim)
{
	claim->row.facts.same_hash = same_bytes(claim->row.request_hash, claim->request_hash);
	claim->decision = record_rules_claim(&claim->row.facts, &claim->claim);
	return claim->decision.action;
}

static void
answer_hidden(Claim *claim)
{
	claim->decision = record_rules_claim_hidden();
	claim->row.facts.state = RECORD_NONE;
}

/* A new record for this claim. */
static void
new_row(Claim *claim)
{
	memset(&claim->row, 0, sizeof(claim->row));
	claim->row.request_hash = claim->request_hash;
	claim->row.operation = claim->operation;
	claim->row.context = claim->context;
	claim->row.created_at = claim->claim.now;
	claim->row.facts.claimed_at = claim->claim.now;
	idem_uuid7_make(&claim->row.resource_id);
}

/* Carries out a decision on a row that is locked. */
static void
write_locked(Claim *claim)
{
	switch (claim->decision.action)
	{
		case RECORD_REPLACE:
			new_row(claim);
			record_own(&claim->key, &claim->row, &claim->decision);
			break;
		case RECORD_TAKE_OVER:
			claim->row.facts.claimed_at = claim->claim.now;
			record_own(&claim->key, &claim->row, &claim->decision);
			break;
		case RECORD_SET_UNKNOWN:
			record_set_unknown(&claim->key, &claim->decision);
			break;
		default:
			break;				/* decided otherwise since, nothing to write */
	}
}

/*
 * What a claim that would have to write comes to in a read-only transaction.
 * UNKNOWN can be said without writing it down.
 */
static void
claim_read_only(Claim *claim)
{
	if (claim->decision.action != RECORD_SET_UNKNOWN)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot claim an idempotency key in a read-only transaction"),
				 errhint("Only keys that are in progress or answered can be looked up here.")));
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

	if (!record_look_latest(&claim->key, &latest))
		memset(&latest, 0, sizeof(latest));
	if (!IsolationUsesXactSnapshot())
	{
		claim->row = latest;
		decide(claim);
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
		if (decide(claim) != RECORD_READ_ONLY)
			answer_hidden(claim);
		return true;
	}
	decide(claim);
	write_locked(claim);
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
	if (decide(claim) == RECORD_READ_ONLY)
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
		if (decide(claim) != RECORD_READ_ONLY)
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
static void
run_claim(Claim *claim)
{
	int			pass = 0;

	while (!claim_pass(claim))
	{
		CHECK_FOR_INTERRUPTS();
		if (++pass == CLAIM_MAX_PASSES)
		{
			answer_hidden(claim);
			break;
		}
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

/* The row that idem_try_insert gives back. */
static Datum
claim_result(FunctionCallInfo fcinfo, Claim *claim)
{
	RecordDecision *decision = &claim->decision;
	bool		run = record_rules_runs(decision->outcome);
	bool		hidden = claim->row.facts.state == RECORD_NONE || decision->outcome == RECORD_OUTCOME_MISMATCH;
	int64		expires_at = run ? decision->expires_at : hidden ? RECORD_TIME_UNSET : claim->row.facts.expires_at;
	TupleDesc	tupdesc;
	Datum		values[13] = {0};
	bool		nulls[13];

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);
	memset(nulls, true, sizeof(nulls));

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
	if (expires_at != RECORD_TIME_UNSET)
		SET(8, TimestampTzGetDatum(expires_at));
	if (decision->outcome == RECORD_OUTCOME_REPLAY)
		SET(12, BoolGetDatum(claim->row.response_body != NULL));
	if (decision->outcome == RECORD_OUTCOME_RESULT_GONE)
		SET(12, BoolGetDatum(false));
#undef SET

	return PointerGetDatum(SPI_returntuple(heap_form_tuple(tupdesc, values, nulls), tupdesc));
}

/*
 * idem_try_insert(principal_id, idempotency_key, request_hash, operation,
 *				   lease, call_timeout, dedup_window, context) -> idem.idem_claim
 *
 * Claims a key for a request, or says why not and what to answer.  Outcomes
 * and arguments are described in the SQL script.
 *
 * Never waits for another transaction.  What it writes belongs to the caller's
 * transaction, whose commit is flushed to disk whatever synchronous_commit
 * says.  Where it writes nothing, it takes no transaction id.
 *
 * Raises 22004, 22023, 25006 (read-only transaction), 40001.
 */
PG_FUNCTION_INFO_V1(idem_try_insert);
Datum
idem_try_insert(PG_FUNCTION_ARGS)
{
	Claim		claim;
	IdemRetryHint hint;
	Datum		result;

	claim_args(fcinfo, &claim);

	SPI_connect();
	idem_retry_hint_push(&hint);
	run_claim(&claim);
	result = claim_result(fcinfo, &claim);
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(result);
}

/* The arguments of idem_complete. */
static void
complete_args(FunctionCallInfo fcinfo, RecordKey *key, int64 *attempt, RecordResponse *response)
{
	memset(response, 0, sizeof(*response));
	key->principal_id = idem_name_arg(fcinfo, 0, "principal_id");
	key->idempotency_key = idem_name_arg(fcinfo, 1, "idempotency_key");
	idem_require_arg(fcinfo, 2, "attempt");
	*attempt = PG_GETARG_INT64(2);
	idem_require_arg(fcinfo, 3, "status");
	response->status = PG_GETARG_INT32(3);
	if (response->status < 100 || response->status > 599)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("status %d is not an HTTP status", response->status),
				 errdetail("It must be from 100 to 599.")));
	idem_require_arg(fcinfo, 4, "body");
	response->body = PG_GETARG_BYTEA_PP(4);
	response->size = VARSIZE_ANY_EXHDR(response->body);
	idem_require_arg(fcinfo, 5, "headers");
	response->headers = PG_GETARG_JSONB_P(5);
	if (!idem_headers_ok(response->headers, true))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers are not a list of pairs"),
				 errhint("Give [[\"name\", \"value\"], ...]; names are not empty, values are strings, neither has control characters.")));

	response->completed_at = GetCurrentTimestamp();
	response->response_expires_at = response->completed_at + idem_response_retention * USECS_PER_MINUTE;
	/* a key is remembered for as long as its response is replayed */
	response->expires_at = response->completed_at +
		Max(idem_record_retention, idem_response_retention) * USECS_PER_MINUTE;
}

static bytea *
sha256_of(bytea *bytes)
{
	return DatumGetByteaPP(DirectFunctionCall1(sha256_bytea, PointerGetDatum(bytes)));
}

/* Whether a completed record holds this very response. */
static bool
same_response(const RecordRow *row, const RecordResponse *response)
{
	if (row->facts.state != RECORD_COMPLETED ||
		row->response_status != response->status ||
		row->response_size != response->size ||
		compareJsonbContainers(&row->response_headers->root, &response->headers->root) != 0)
		return false;
	if (row->response_body != NULL)
		return same_bytes(row->response_body, response->body);
	return same_bytes(row->response_digest, sha256_of(response->body));
}

/* Raises the error that a refused completion comes to. */
static void
complete_error(RecordCompletion verdict, int64 attempt)
{
	switch (verdict)
	{
		case RECORD_ABSENT:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_FENCED),
					 errmsg("there is no idempotency record to complete"),
					 errhint("Claim the key first, with idem_try_insert, in a transaction that commits.")));
			break;
		case RECORD_FENCED:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_FENCED),
					 errmsg("attempt %lld does not own the idempotency record", (long long) attempt),
					 errdetail("Its lease was over and another attempt took the record over, or its claim was rolled back."),
					 errhint("Roll back. The request that owns the record now answers the client.")));
			break;
		case RECORD_CALL_MARKED_HERE:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_CALL_IN_TRANSACTION),
					 errmsg("the external call was marked in the transaction that completes it"),
					 errdetail("A crash during the call would leave no trace of it."),
					 errhint("Commit the claim before the call, and complete in a second transaction. Leave call_timeout out where there is no call.")));
			break;
		case RECORD_OTHER_RESPONSE:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("attempt %lld was completed with another response", (long long) attempt),
					 errhint(ANSWERED_HINT)));
			break;
		case RECORD_RESPONSE_EXPIRED:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("attempt %lld was completed, and its response has expired", (long long) attempt),
					 errhint(ANSWERED_HINT)));
			break;
		default:
			elog(ERROR, "unexpected verdict on a completion: %d", (int) verdict);
	}
}

/* Stores the response; true when this call did. */
static bool
run_complete(const RecordKey *key, int64 attempt, const RecordResponse *response)
{
	RecordRow	row;
	RecordCompletion verdict;
	RecordResponse stored = *response;

	record_lock_row(key, &row);
	verdict = record_rules_complete(&row.facts, attempt, same_response(&row, response),
									response->completed_at);
	if (verdict == RECORD_REPEAT)
		return false;
	if (verdict != RECORD_COMPLETE)
		complete_error(verdict, attempt);

	if (response->size > idem_max_response_bytes)
	{
		stored.digest = sha256_of(response->body);
		stored.body = NULL;
	}
	record_complete(key, &stored);

	/* the caller will send it: it must survive a crash */
	ForceSyncCommit();
	IDEM_TEST_POINT("complete-updated");
	return true;
}

/*
 * idem_complete(principal_id, idempotency_key, attempt, status, body bytea,
 *				 headers) -> idem.idem_http
 *
 * Stores the response of an attempt and gives back what to send.  changed is
 * false when the same attempt had stored this very response; all else is an
 * error, so that the caller's own rows roll back.  Waits for a concurrent
 * change of the record, under lock_timeout; the commit is flushed to disk
 * whatever synchronous_commit says.
 *
 * Raises ID001, ID002, ID003, 22004, 22023, 40001, 55P03.
 */
PG_FUNCTION_INFO_V1(idem_complete);
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	RecordKey	key;
	int64		attempt;
	RecordResponse response;
	IdemRetryHint hint;
	TupleDesc	tupdesc;
	Datum		values[4];
	bool		nulls[4] = {false};

	complete_args(fcinfo, &key, &attempt, &response);
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);

	SPI_connect();
	idem_retry_hint_push(&hint);
	values[0] = Int32GetDatum(response.status);
	values[1] = JsonbPGetDatum(response.headers);
	values[2] = PointerGetDatum(response.body);
	values[3] = BoolGetDatum(run_complete(&key, attempt, &response));
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}
