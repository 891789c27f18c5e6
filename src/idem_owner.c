/*-------------------------------------------------------------------------
 *
 * idem_owner.c
 *		Idempotency records: what their owner, and an operator, do with them.
 *
 * Each function locks the record's row, asks record_rules.c, and writes or
 * raises.  What permits a call or a reply is flushed to disk with the commit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_clock.h"
#include "idem_errors.h"
#include "idem_guc.h"
#include "idem_headers.h"
#include "idem_retry.h"
#include "idem_shared.h"
#include "record_answer.h"
#include "record_store.h"

#define USECS_PER_MS		INT64CONST(1000)

#define ANSWERED_HINT		"Roll back. The request already has its answer: idem_try_insert gives it."
#define UNKNOWN_HINT		"Roll back. An operator settles it with idem_resolve, or a late answer with idem_complete."

/* ---- arguments and results ---- */

static void
key_args(FunctionCallInfo fcinfo, RecordKey *key)
{
	key->principal_id = idem_name_arg(fcinfo, 0, "principal_id");
	key->idempotency_key = idem_name_arg(fcinfo, 1, "idempotency_key");
}

static int64
attempt_arg(FunctionCallInfo fcinfo)
{
	idem_require_arg(fcinfo, 2, "attempt");
	return PG_GETARG_INT64(2);
}

static int
status_arg(FunctionCallInfo fcinfo, int argno)
{
	int			status;

	idem_require_arg(fcinfo, argno, "status");
	status = PG_GETARG_INT32(argno);
	if (status < 100 || status > 599)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("status %d is not an HTTP status", status),
				 errdetail("It must be from 100 to 599."),
				 errhint("Give the status that the client is to get, such as 201.")));
	return status;
}

/* A response to store: three arguments from argno on. */
static void
response_args(FunctionCallInfo fcinfo, int argno, RecordResponse *response)
{
	memset(response, 0, sizeof(*response));
	response->status = status_arg(fcinfo, argno);
	idem_require_arg(fcinfo, argno + 1, "body");
	response->body = PG_GETARG_BYTEA_PP(argno + 1);
	response->size = VARSIZE_ANY_EXHDR(response->body);
	idem_require_arg(fcinfo, argno + 2, "headers");
	response->headers = PG_GETARG_JSONB_P(argno + 2);
	if (!idem_headers_ok(response->headers, true))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers are not a list of pairs"),
				 errhint("Give [[\"name\", \"value\"], ...]; names are not empty, values are strings, neither has control characters.")));
	response->completed_at = idem_now();
}

/* One row of idem.idem_http. */
static Datum
http_result(FunctionCallInfo fcinfo, int status, Jsonb *headers, bytea *body, bool changed)
{
	TupleDesc	tupdesc;
	Datum		values[4];
	bool		nulls[4] = {false};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);
	values[0] = Int32GetDatum(status);
	values[1] = JsonbPGetDatum(headers);
	values[2] = PointerGetDatum(body);
	nulls[2] = body == NULL;
	values[3] = BoolGetDatum(changed);
	return HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls));
}

/* The same from memory that SPI_finish frees. */
static Datum
http_answer(FunctionCallInfo fcinfo, const RecordAnswer *answer, bool changed)
{
	Datum		result = http_result(fcinfo, answer->status, answer->headers, answer->body, changed);

	return SPI_datumTransfer(result, false, -1);
}

/* ---- errors ---- */

/* The errors that mean that the caller does not own the record. */
static void
fence_error(RecordVerdict verdict, int64 attempt)
{
	if (verdict == RECORD_ABSENT)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_FENCED),
				 errmsg("there is no idempotency record"),
				 errhint("Claim the key first, with idem_try_insert, in a transaction that commits.")));
	if (verdict == RECORD_FENCED)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_FENCED),
				 errmsg("attempt %lld does not own the idempotency record", (long long) attempt),
				 errdetail("Its lease was over and another attempt took the record over, or its claim was rolled back."),
				 errhint("Roll back. The request that owns the record now answers the client.")));
}

/* The errors of a completed record. */
static void
completed_error(RecordVerdict verdict, int64 attempt)
{
	switch (verdict)
	{
		case RECORD_IS_COMPLETED:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the idempotency record is completed"),
					 errhint(ANSWERED_HINT)));
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
		case RECORD_OTHER_VERDICT:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the idempotency record was resolved with another verdict"),
					 errhint("Look at its row in idem.resolution.")));
			break;
		default:
			break;
	}
}

/* Raises the error that a refusal comes to. */
static void
refuse(RecordVerdict verdict, int64 attempt)
{
	fence_error(verdict, attempt);
	completed_error(verdict, attempt);
	switch (verdict)
	{
		case RECORD_CALL_MARKED_HERE:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_CALL_IN_TRANSACTION),
					 errmsg("the external call was marked in the transaction that completes it"),
					 errdetail("A crash during the call would leave no trace of it."),
					 errhint("Commit the claim before the call, and complete in a second transaction. Leave call_timeout out where there is no call.")));
			break;
		case RECORD_IS_UNKNOWN:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the outcome of the idempotency record is unknown"),
					 errhint(UNKNOWN_HINT)));
			break;
		case RECORD_LEASE_OVER:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the lease of attempt %lld is over, and it can't be resumed", (long long) attempt),
					 errdetail("Its call can't be repeated, or idem.max_tries attempts have ended without an answer."),
					 errhint("Do not call. Complete with the answer of the first call, or use idem_mark_unknown.")));
			break;
		case RECORD_PAST_DEDUP:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the call would end after the far side has forgotten the key"),
					 errhint("Do not call. Complete with the answer of the first call, or use idem_mark_unknown.")));
			break;
		case RECORD_NOT_UNKNOWN:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the idempotency record is in progress"),
					 errhint("Only records that are UNKNOWN are resolved. A claim, or idem_claim_stale, makes it so when its lease is over.")));
			break;
		case RECORD_TOO_EARLY:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_WRONG_STATE),
					 errmsg("the call may still be on its way"),
					 errdetail("A verdict has to wait until idem.call_grace after the deadline of the call."),
					 errhint("Try again later; idem.unresolved shows the deadline.")));
			break;
		default:
			elog(ERROR, "unexpected verdict on an idempotency record: %d", (int) verdict);
	}
}

/* ---- idem_before_call ---- */

/*
 * idem_before_call(principal_id, idempotency_key, attempt, timeout,
 *					dedup_window) -> timestamptz
 *
 * Marks an external call of an attempt and gives its deadline; commit before
 * calling.  Raises ID001, ID002, 22004, 22023, 40001, 55P03.
 */
PG_FUNCTION_INFO_V1(idem_before_call);
Datum
idem_before_call(PG_FUNCTION_ARGS)
{
	RecordKey	key;
	RecordRow	row;
	RecordCall	call;
	RecordDecision decision;
	RecordVerdict verdict;
	IdemRetryHint hint;
	int64		attempt;

	key_args(fcinfo, &key);
	attempt = attempt_arg(fcinfo);
	if (!idem_interval_arg(fcinfo, 3, "timeout", 1, &call.timeout))
		idem_require_arg(fcinfo, 3, "timeout");
	if (!idem_interval_arg(fcinfo, 4, "dedup_window", 0, &call.dedup_window))
		call.dedup_window = 0;
	call.call_margin = idem_call_margin * USECS_PER_MS;
	call.max_tries = idem_max_tries;

	SPI_connect();
	idem_retry_hint_push(&hint);
	record_lock_row(&key, &row);
	call.now = idem_now();		/* after a wait for the row */
	verdict = record_rules_before_call(&row.facts, attempt, &call, &decision);
	if (verdict != RECORD_OK)
		refuse(verdict, attempt);
	record_mark_call(&row, &decision);
	ForceSyncCommit();			/* the caller will call */
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_TIMESTAMPTZ(decision.call_deadline);
}

/* ---- idem_complete, idem_resolve ---- */

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
		return record_same_bytes(row->response_body, response->body);
	return record_same_bytes(row->response_digest, sha256_of(response->body));
}

/* Stores a response: for how long, and how much of it. */
static void
store_response(RecordRow *row, const RecordResponse *response)
{
	RecordResponse stored = *response;
	int64		retention = row->retention != RECORD_TIME_UNSET
		? row->retention : idem_record_retention * USECS_PER_MINUTE;

	stored.expires_at = stored.completed_at + retention;
	stored.response_expires_at = stored.completed_at +
		Min(retention, idem_response_retention * USECS_PER_MINUTE);
	if (stored.size > idem_max_response_bytes)
	{
		stored.digest = sha256_of(stored.body);
		stored.body = NULL;
	}
	record_complete(row, &stored);

	/* the caller will send it */
	ForceSyncCommit();
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
	RecordRow	row;
	RecordResponse response;
	RecordVerdict verdict;
	IdemRetryHint hint;
	int64		attempt;

	key_args(fcinfo, &key);
	attempt = attempt_arg(fcinfo);
	response_args(fcinfo, 3, &response);

	SPI_connect();
	idem_retry_hint_push(&hint);
	record_lock_row(&key, &row);
	response.completed_at = idem_now(); /* after a wait for the row */
	verdict = record_rules_complete(&row.facts, attempt, same_response(&row, &response),
									response.completed_at);
	if (verdict == RECORD_OK)
	{
		store_response(&row, &response);
		IDEM_TEST_POINT("complete-updated");
	}
	else if (verdict != RECORD_REPEAT)
		refuse(verdict, attempt);
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(http_result(fcinfo, response.status, response.headers, response.body,
								verdict == RECORD_OK));
}

/* The verdict of an operator, as a number of the rules. */
static int
verdict_arg(FunctionCallInfo fcinfo, const char **name)
{
	char	   *given;

	idem_require_arg(fcinfo, 2, "verdict");
	*name = given = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (strcmp(given, "completed") == 0)
		return VERDICT_COMPLETED;
	if (strcmp(given, "not_applied") == 0)
		return VERDICT_NOT_APPLIED;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("there is no verdict \"%s\"", given),
			 errhint("Use completed or not_applied.")));
}

/*
 * idem_resolve(principal_id, idempotency_key, verdict, evidence, status, body
 *				bytea, headers) -> idem.idem_http
 *
 * An operator settles an UNKNOWN record: COMPLETED with the response given, and a
 * row in idem.resolution.  Raises ID001, ID002, 22004, 22023, 40001, 55P03.
 */
PG_FUNCTION_INFO_V1(idem_resolve);
Datum
idem_resolve(PG_FUNCTION_ARGS)
{
	RecordKey	key;
	RecordRow	row;
	RecordResponse response;
	RecordVerdict verdict;
	IdemRetryHint hint;
	const char *verdict_name;
	int			operator_verdict;
	Datum		result;

	key_args(fcinfo, &key);
	operator_verdict = verdict_arg(fcinfo, &verdict_name);
	idem_require_arg(fcinfo, 3, "evidence");
	response_args(fcinfo, 4, &response);
	response.verdict = verdict_name;

	SPI_connect();
	idem_retry_hint_push(&hint);
	record_lock_row(&key, &row);
	response.completed_at = idem_now(); /* after a wait for the row */
	verdict = record_rules_resolve(&row.facts, operator_verdict, idem_call_grace * USECS_PER_MS,
								   response.completed_at);
	if (verdict == RECORD_OK)
	{
		RecordAnswer answer = {response.status, response.headers, response.body};

		store_response(&row, &response);
		record_add_resolution(&key, row.facts.attempt, PG_GETARG_JSONB_P(3), &response);
		result = http_answer(fcinfo, &answer, true);
	}
	else if (verdict == RECORD_REPEAT)
	{
		RecordAnswer answer = {row.response_status, row.response_headers, row.response_body};

		result = http_answer(fcinfo, &answer, false);
	}
	else if (verdict == RECORD_ABSENT)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_FENCED),
				 errmsg("there is no idempotency record"),
				 errhint("Look into idem.unresolved for the records that can be settled.")));
	else
		refuse(verdict, row.facts.attempt);
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(result);
}

/* ---- idem_mark_unknown, idem_yield ---- */

/*
 * idem_mark_unknown(principal_id, idempotency_key, attempt, reason,
 *					 external_ref, status) -> idem.idem_http
 *
 * Says that nobody can know whether the work was done, and gives the answer to
 * send.  Raises ID001, ID002, 22004, 22023, 40001, 55P03.
 */
PG_FUNCTION_INFO_V1(idem_mark_unknown);
Datum
idem_mark_unknown(PG_FUNCTION_ARGS)
{
	RecordKey	key;
	RecordRow	row;
	RecordUnknown unknown = {0};
	RecordVerdict verdict;
	RecordAnswer answer;
	IdemRetryHint hint;
	int64		attempt;
	Datum		result;

	key_args(fcinfo, &key);
	attempt = attempt_arg(fcinfo);
	unknown.reason = PG_ARGISNULL(3) ? NULL : PG_GETARG_TEXT_PP(3);
	unknown.external_ref = PG_ARGISNULL(4) ? NULL : PG_GETARG_TEXT_PP(4);
	unknown.status = status_arg(fcinfo, 5);

	SPI_connect();
	idem_retry_hint_push(&hint);
	record_lock_row(&key, &row);
	unknown.at = idem_now();	/* after a wait for the row */
	verdict = record_rules_mark_unknown(&row.facts, attempt, unknown.at);
	if (verdict == RECORD_OK)
	{
		unknown.tries = row.facts.tries + 1;
		record_set_unknown(&row, &unknown);
		ForceSyncCommit();		/* the caller will send it */
	}
	else if (verdict != RECORD_REPEAT)
		refuse(verdict, attempt);
	answer = record_answer(RECORD_OUTCOME_UNKNOWN, 1, &row);
	result = http_answer(fcinfo, &answer, verdict == RECORD_OK);
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(result);
}

/*
 * idem_yield(principal_id, idempotency_key, attempt) -> idem.idem_http
 *
 * Ends the lease of an attempt and keeps its call mark; gives a 503 to send.
 * Raises ID001, ID002, 22004, 22023, 40001, 55P03.
 */
PG_FUNCTION_INFO_V1(idem_yield);
Datum
idem_yield(PG_FUNCTION_ARGS)
{
	RecordKey	key;
	RecordRow	row;
	RecordVerdict verdict;
	RecordAnswer answer;
	IdemRetryHint hint;
	TimestampTz now;
	int64		attempt;
	Datum		result;

	key_args(fcinfo, &key);
	attempt = attempt_arg(fcinfo);

	SPI_connect();
	idem_retry_hint_push(&hint);
	record_lock_row(&key, &row);
	now = idem_now();			/* after a wait for the row */
	verdict = record_rules_yield(&row.facts, attempt, idem_max_tries, now);
	if (verdict == RECORD_OK)
		record_yield(&row, now);
	else if (verdict != RECORD_REPEAT)
		refuse(verdict, attempt);
	answer = record_yield_answer();
	result = http_answer(fcinfo, &answer, verdict == RECORD_OK);
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(result);
}
