/*-------------------------------------------------------------------------
 *
 * idem_request.c
 *		idem_request_hash: what stands for a request.
 *
 * The hash of a request is that of one JSON array:
 *
 *	["idem.request",1,mode,method,path,include,exclude,selected]
 *
 * in canonical text, so that no two requests, and no two ways of selecting from
 * one, can share a text.  The 1 is the version of this layout.  The two lists
 * are sorted and without repeats, null where there is none; without a body the
 * last element is missing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_canonical.h"
#include "idem_hash.h"
#include "idem_select.h"
#include "idem_utf8.h"

/* What jsonb can hold; more takes gigabytes of memory before it is refused. */
#define SELECT_MAX_BYTES	JENTRY_OFFLENMASK

enum
{
	ARG_METHOD,
	ARG_PATH,
	ARG_BODY,
	ARG_INCLUDE,
	ARG_EXCLUDE,
	ARG_OPTIONAL,
	ARG_MODE
};

/* A request as its function was given it. */
typedef struct Request
{
	const text *method;
	const text *path;
	CanonicalMode mode;
	JsonPointerList *include;		/* NULL: none given */
	JsonPointerList *exclude;
	Jsonb	   *part;			/* what counts of the body, or */
	const text *json;			/* the whole body as text; both NULL: no body */
} Request;

static JsonPointerList *
list_arg(FunctionCallInfo fcinfo, int argno, const char *name)
{
	return PG_ARGISNULL(argno) ? NULL : pointer_list(PG_GETARG_ARRAYTYPE_P(argno), name);
}

/* Sink: nowhere. */
static void
discard(void *ctx, const char *data, size_t len)
{
	(void) ctx;
	(void) data;
	(void) len;
	CHECK_FOR_INTERRUPTS();
}

/*
 * A body given as text, as jsonb.  All of it is read strictly before, the part
 * that will not be selected too: another parser may understand it in another
 * way.  The mode is not looked at, for it says something of what is hashed.
 */
static Jsonb *
strict_jsonb(const text *json)
{
	CanonicalSink sink;

	if (VARSIZE_ANY_EXHDR(json) > SELECT_MAX_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("JSON text of %zu bytes is too long to select from",
						(size_t) VARSIZE_ANY_EXHDR(json)),
				 errdetail("It may have %d bytes, as many as a jsonb value.", SELECT_MAX_BYTES)));
	canonical_init(&sink, discard, NULL);
	idem_write_text(&sink, json, CANONICAL_EXACT);
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
											  CStringGetDatum(text_to_cstring(json))));
}

/* Reads the arguments, and selects from the body. */
static void
request_args(FunctionCallInfo fcinfo, bool body_is_text, Request *request)
{
	JsonPointerList *optional = list_arg(fcinfo, ARG_OPTIONAL, "optional");
	bool		selects;

	idem_require_arg(fcinfo, ARG_METHOD, "method");
	idem_require_arg(fcinfo, ARG_PATH, "path");
	idem_require_arg(fcinfo, ARG_MODE, "mode");
	request->method = PG_GETARG_TEXT_PP(ARG_METHOD);
	request->path = PG_GETARG_TEXT_PP(ARG_PATH);
	request->mode = idem_canonical_mode(PG_GETARG_TEXT_PP(ARG_MODE));
	request->include = list_arg(fcinfo, ARG_INCLUDE, "include");
	request->exclude = list_arg(fcinfo, ARG_EXCLUDE, "exclude");
	request->part = NULL;
	request->json = NULL;

	pointer_list_check_optional(request->include, optional);
	if (PG_ARGISNULL(ARG_BODY))
	{
		if (request->include != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_NO_SQL_JSON_ITEM),
					 errmsg("include selects nothing, since there is no body"),
					 errhint("Give no include for a request without a body.")));
		return;
	}

	selects = request->include != NULL || (request->exclude != NULL && request->exclude->n > 0);
	if (!body_is_text)
		request->part = PG_GETARG_JSONB_P(ARG_BODY);
	else if (selects)
		request->part = strict_jsonb(PG_GETARG_TEXT_PP(ARG_BODY));
	else
		request->json = PG_GETARG_TEXT_PP(ARG_BODY);
	if (selects)
		request->part = select_part(request->part, request->include, request->exclude, optional);
}

static void
write_string(CanonicalSink *sink, const text *value)
{
	idem_write_string(sink, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}

/* A pointer as UTF-8. */
typedef struct Utf8Name
{
	const char *name;
	size_t		len;
} Utf8Name;

/* qsort comparator: names in UTF-16 order */
static int
compare_names(const void *a, const void *b)
{
	const Utf8Name *first = a;
	const Utf8Name *second = b;

	return canonical_compare_names(first->name, first->len, second->name, second->len);
}

/* A list of pointers, sorted and without repeats. */
static void
write_list(CanonicalSink *sink, const JsonPointerList *list)
{
	Utf8Source	source;
	Utf8Name   *names;

	if (list == NULL)
	{
		canonical_bytes(sink, "null", 4);
		return;
	}
	utf8_source_init(&source);
	names = palloc(sizeof(Utf8Name) * Max(list->n, 1));
	for (int i = 0; i < list->n; i++)
		names[i].name = utf8_from_database_checked(&source, list->pointers[i].text,
												   list->pointers[i].len, &names[i].len);
	qsort(names, list->n, sizeof(Utf8Name), compare_names);

	canonical_char(sink, '[');
	for (int i = 0; i < list->n; i++)
	{
		if (i > 0 && compare_names(&names[i - 1], &names[i]) == 0)
			continue;
		if (i > 0)
			canonical_char(sink, ',');
		canonical_string(sink, names[i].name, names[i].len);
	}
	canonical_char(sink, ']');
	pfree(names);
}

/* The array that stands for a request. */
static void
write_request(CanonicalSink *sink, const Request *request)
{
	static const char begin[] = "[\"idem.request\",1,";

	canonical_bytes(sink, begin, sizeof(begin) - 1);
	if (request->mode == CANONICAL_JCS)
		canonical_bytes(sink, "\"jcs\",", 6);
	else
		canonical_bytes(sink, "\"exact\",", 8);
	write_string(sink, request->method);
	canonical_char(sink, ',');
	write_string(sink, request->path);
	canonical_char(sink, ',');
	write_list(sink, request->include);
	canonical_char(sink, ',');
	write_list(sink, request->exclude);
	if (request->part != NULL)
	{
		canonical_char(sink, ',');
		idem_write_jsonb(sink, request->part, request->mode);
	}
	else if (request->json != NULL)
	{
		canonical_char(sink, ',');
		idem_write_text(sink, request->json, request->mode);
	}
	canonical_char(sink, ']');
}

static Datum
request_hash(FunctionCallInfo fcinfo, bool body_is_text)
{
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	Request		request;
	IdemHash	hash;

	request_args(fcinfo, body_is_text, &request);
	write_request(idem_hash_begin(&hash), &request);
	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	idem_hash_finish(&hash, (uint8 *) VARDATA(result));
	PG_RETURN_BYTEA_P(result);
}

/*
 * idem_request_hash(method text, path text, body jsonb, include text[],
 *					 exclude text[], optional text[], mode text) -> bytea
 *
 * 32 bytes that stand for a request: SHA-256 of the canonical text of
 * ["idem.request",1,mode,method,path,include,exclude,selected].
 *
 *	method, path	as the request has them; neither is changed in any way
 *	body			NULL: no body, which is not the body null
 *	include			which parts of the body count, JSON pointers (RFC 6901) with
 *					"*", or plain names of the top level; NULL: the whole body
 *	exclude			which parts don't, applied last; NULL: none
 *	optional		pointers of include that may hit nothing; NULL: none
 *	mode			exact or jcs, as for idem_canonical
 *
 * Raises 22004 (method, path, mode or a pointer is NULL), 22023 (no such mode, a
 * malformed pointer, optional names what include does not), 22035 (an include
 * hits nothing, or nothing is left), and what idem_hash raises.
 *
 * Reads and writes no table; works in any transaction and leaves no state.
 */
PG_FUNCTION_INFO_V1(idem_request_hash);
Datum
idem_request_hash(PG_FUNCTION_ARGS)
{
	return request_hash(fcinfo, false);
}

/*
 * idem_request_hash(method text, path text, body text, ...) -> bytea
 *
 * The same for a body as it was received, JSON text, which is read strictly.
 * Raises what idem_request_hash(…, jsonb, …) and idem_hash(text) raise, and 54000
 * when something is to be selected from more than 256 MB.
 */
PG_FUNCTION_INFO_V1(idem_request_hash_text);
Datum
idem_request_hash_text(PG_FUNCTION_ARGS)
{
	return request_hash(fcinfo, true);
}
