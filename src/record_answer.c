/*-------------------------------------------------------------------------
 *
 * record_answer.c
 *		HTTP answers for requests that are not to be run.
 *
 * Errors are problem documents (RFC 9457).  They say nothing of the other
 * request or of its response.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "compat.h"
#include "idem_guc.h"
#include "record_answer.h"

typedef struct Problem
{
	int			status;
	const char *code;
	const char *title;
	const char *detail;
} Problem;

/* codes in the order of problems[] */
enum
{
	PROBLEM_MISSING,
	PROBLEM_MALFORMED,
	PROBLEM_REUSED,
	PROBLEM_IN_PROGRESS,
	PROBLEM_UNCERTAIN,
	PROBLEM_EXPIRED
};

static const Problem problems[] = {
	{400, "idempotency_key_missing", "Idempotency-Key missing",
	"This operation needs an Idempotency-Key header. Make a new key for each new request, and keep it for retries."},
	{400, "idempotency_key_malformed", "Idempotency-Key malformed",
	"The Idempotency-Key has to be 1 to 255 characters without control characters."},
	{409, "idempotency_key_reused", "Idempotency-Key reused",
	"This Idempotency-Key was used with another request. Use a new key for a new request."},
	{409, "operation_in_progress", "Operation in progress",
	"A request with this Idempotency-Key is being processed. Retry later with the same key."},
	{202, "operation_uncertain", "Outcome not known yet",
	"It is not known yet whether the operation was carried out. Ask again later with the same key."},
	{409, "operation_result_expired", "Result expired",
	"A request with this Idempotency-Key was completed, and its response is no longer kept."}
};

const char *
record_outcome_name(RecordOutcome outcome)
{
	switch (outcome)
	{
		case RECORD_OUTCOME_STARTED:
			return "STARTED";
		case RECORD_OUTCOME_RESUMED:
			return "RESUMED";
		case RECORD_OUTCOME_IN_PROGRESS:
			return "IN_PROGRESS";
		case RECORD_OUTCOME_ALREADY_YOURS:
			return "ALREADY_YOURS";
		case RECORD_OUTCOME_MISMATCH:
			return "MISMATCH";
		case RECORD_OUTCOME_REPLAY:
			return "REPLAY";
		case RECORD_OUTCOME_RESULT_GONE:
			return "RESULT_GONE";
		case RECORD_OUTCOME_UNKNOWN:
			return "UNKNOWN";
	}
	pg_unreachable();
}

static Jsonb *
jsonb_from_cstring(const char *json)
{
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
}

/* The header that tells a replay, made once in a session. */
static Jsonb *
replay_mark(void)
{
	static Jsonb *mark = NULL;

	if (mark == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		mark = jsonb_from_cstring("[[\"idempotent-replayed\", \"true\"]]");
		MemoryContextSwitchTo(old);
	}
	return mark;
}

/* The stored response, marked as a replay. */
static RecordAnswer
replay(const RecordRow *row)
{
	RecordAnswer answer;

	answer.status = row->response_status;
	answer.headers = DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
														JsonbPGetDatum(row->response_headers),
														JsonbPGetDatum(replay_mark())));
	answer.body = row->response_body;
	return answer;
}

/* A problem document; retry_after in seconds, 0: none. */
static RecordAnswer
problem_answer(int which, int status, int retry_after)
{
	const Problem *problem = &problems[which];
	RecordAnswer answer;
	StringInfoData headers;
	StringInfoData body;

	initStringInfo(&headers);
	appendStringInfoString(&headers, "[[\"content-type\", \"application/problem+json\"]");
	if (retry_after > 0)
		appendStringInfo(&headers, ", [\"retry-after\", \"%d\"]", retry_after);
	appendStringInfoChar(&headers, ']');

	/* constant texts that need no escapes */
	initStringInfo(&body);
	appendStringInfo(&body,
					 "{\"type\":\"urn:idem:problem:%s\",\"title\":\"%s\",\"status\":%d,"
					 "\"detail\":\"%s\",\"code\":\"%s\"}",
					 problem->code, problem->title, status, problem->detail, problem->code);

	answer.status = status;
	answer.headers = jsonb_from_cstring(headers.data);
	answer.body = (bytea *) cstring_to_text_with_len(body.data, body.len);
	return answer;
}

/*
 * The answer to send for an outcome that doesn't run.  row is the record, with
 * state RECORD_NONE where it can't be seen.
 */
RecordAnswer
record_answer(RecordOutcome outcome, int retry_after, const RecordRow *row)
{
	switch (outcome)
	{
		case RECORD_OUTCOME_REPLAY:
			return replay(row);
		case RECORD_OUTCOME_MISMATCH:
			return problem_answer(PROBLEM_REUSED, idem_mismatch_status, 0);
		case RECORD_OUTCOME_RESULT_GONE:
			return problem_answer(PROBLEM_EXPIRED, problems[PROBLEM_EXPIRED].status, 0);
		case RECORD_OUTCOME_UNKNOWN:
			/* who marked it may have chosen the status */
			return problem_answer(PROBLEM_UNCERTAIN,
								  row->response_status != 0 ? row->response_status : problems[PROBLEM_UNCERTAIN].status,
								  retry_after);
		default:
			return problem_answer(PROBLEM_IN_PROGRESS, problems[PROBLEM_IN_PROGRESS].status, retry_after);
	}
}

/* The answer of an attempt that gave its lease up: come again. */
RecordAnswer
record_yield_answer(void)
{
	return problem_answer(PROBLEM_IN_PROGRESS, 503, 1);
}

/* The answer for a problem by its code; false: there is no such code. */
bool
record_problem_answer(const char *code, RecordAnswer *answer)
{
	for (int i = 0; i < (int) lengthof(problems); i++)
	{
		if (strcmp(problems[i].code, code) != 0)
			continue;
		*answer = problem_answer(i, i == PROBLEM_REUSED ? idem_mismatch_status : problems[i].status,
								 i == PROBLEM_IN_PROGRESS || i == PROBLEM_UNCERTAIN ? 1 : 0);
		return true;
	}
	return false;
}
