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

#include "compat.h"
#include "record_answer.h"

typedef struct Problem
{
	int			status;
	const char *code;
	const char *title;
	const char *detail;
} Problem;

static const Problem problem_in_progress = {
	409, "operation_in_progress", "Operation in progress",
	"A request with this Idempotency-Key is being processed. Retry later with the same key."
};
static const Problem problem_reused = {
	409, "idempotency_key_reused", "Idempotency-Key reused",
	"This Idempotency-Key was used with another request. Use a new key for a new request."
};
static const Problem problem_uncertain = {
	202, "operation_uncertain", "Outcome not known yet",
	"It is not known yet whether the operation was carried out. Ask again later with the same key."
};
static const Problem problem_expired = {
	409, "operation_result_expired", "Result expired",
	"A request with this Idempotency-Key was completed, and its response is no longer kept."
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

/* The stored response, marked as a replay. */
static RecordAnswer
replay(const RecordRow *row)
{
	Jsonb	   *mark = jsonb_from_cstring("[[\"idempotent-replayed\", \"true\"]]");
	RecordAnswer answer;

	answer.status = row->response_status;
	answer.headers = DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
														JsonbPGetDatum(row->response_headers),
														JsonbPGetDatum(mark)));
	answer.body = row->response_body;
	return answer;
}

/* A problem document; retry_after in seconds, 0: none. */
static RecordAnswer
problem_answer(const Problem *problem, int retry_after)
{
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
					 problem->code, problem->title, problem->status, problem->detail, problem->code);

	answer.status = problem->status;
	answer.headers = jsonb_from_cstring(headers.data);
	answer.body = (bytea *) cstring_to_text_with_len(body.data, body.len);
	return answer;
}

/*
 * The answer to send for an outcome that doesn't run.  row is the record, or
 * NULL where it can't be seen.
 */
RecordAnswer
record_answer(RecordOutcome outcome, int retry_after, const RecordRow *row)
{
	switch (outcome)
	{
		case RECORD_OUTCOME_REPLAY:
			return replay(row);
		case RECORD_OUTCOME_MISMATCH:
			return problem_answer(&problem_reused, 0);
		case RECORD_OUTCOME_RESULT_GONE:
			return problem_answer(&problem_expired, 0);
		case RECORD_OUTCOME_UNKNOWN:
			return problem_answer(&problem_uncertain, retry_after);
		default:
			return problem_answer(&problem_in_progress, retry_after);
	}
}
