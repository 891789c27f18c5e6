/*-------------------------------------------------------------------------
 *
 * idem_key.c
 *		Idempotency keys at the edge: reading the header, refusing without one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "compat.h"
#include "idem_args.h"
#include "record_answer.h"

/*
 * Takes a string of structured fields (RFC 9651, section 4.2.5) apart: from the
 * quote at start to the one at end.  NULL: it is none.
 */
static text *
unquote(const char *start, const char *end)
{
	char	   *key = palloc(end - start);
	int			len = 0;

	for (const char *p = start + 1; p < end; p++)
	{
		if (*p == '"')
			return p + 1 == end ? cstring_to_text_with_len(key, len) : NULL;
		if (*p == '\\')
		{
			p++;
			if (p == end || (*p != '"' && *p != '\\'))
				return NULL;
		}
		if (*p < 0x20 || *p > 0x7e)
			return NULL;
		key[len++] = *p;
	}
	return NULL;				/* it does not end */
}

/*
 * idem_key(header text) -> text
 *
 * The key in an Idempotency-Key header, bare or as a string of structured
 * fields.  Raises 22023.
 */
PG_FUNCTION_INFO_V1(idem_key);
Datum
idem_key(PG_FUNCTION_ARGS)
{
	text	   *header = PG_GETARG_TEXT_PP(0);
	const char *start = VARDATA_ANY(header);
	const char *end = start + VARSIZE_ANY_EXHDR(header);
	text	   *key;

	while (start < end && (*start == ' ' || *start == '\t'))
		start++;
	while (end > start && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	if (start < end && *start == '"')
		key = unquote(start, end);
	else
		key = cstring_to_text_with_len(start, end - start);
	if (key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the idempotency key is a malformed string"),
				 errdetail("In double quotes stand ASCII characters, only \\\" and \\\\ are escapes, and nothing follows the closing quote."),
				 errhint("Answer the client with idem_http_problem('idempotency_key_malformed').")));
	idem_check_name(key, "idempotency key");
	PG_RETURN_TEXT_P(key);
}

/*
 * idem_http_problem(code text) -> idem.idem_http
 *
 * The HTTP answer for a problem, a problem document (RFC 9457).  Touches no
 * table.  Raises 22004, 22023.
 */
PG_FUNCTION_INFO_V1(idem_http_problem);
Datum
idem_http_problem(PG_FUNCTION_ARGS)
{
	RecordAnswer answer;
	char	   *code;
	TupleDesc	tupdesc;
	Datum		values[4];
	bool		nulls[4] = {false};

	idem_require_arg(fcinfo, 0, "code");
	code = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!record_problem_answer(code, &answer))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there is no problem with the code \"%s\"", code),
				 errhint("Use idempotency_key_missing, idempotency_key_malformed, idempotency_key_reused, operation_in_progress, operation_uncertain or operation_result_expired.")));

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);
	values[0] = Int32GetDatum(answer.status);
	values[1] = JsonbPGetDatum(answer.headers);
	values[2] = PointerGetDatum(answer.body);
	values[3] = BoolGetDatum(false);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}
