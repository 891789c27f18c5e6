/*-------------------------------------------------------------------------
 *
 * idem_canonical.c
 *	  idem_canonical(jsonb) and idem_canonical(text).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "idem_canonical.h"

/*
 * Mode by its name.  Raises 22023 for another.
 */
CanonicalMode
idem_canonical_mode(const text *name)
{
	const char *str = VARDATA_ANY(name);
	int			len = VARSIZE_ANY_EXHDR(name);

	if (len == 5 && memcmp(str, "exact", 5) == 0)
		return CANONICAL_EXACT;
	if (len == 3 && memcmp(str, "jcs", 3) == 0)
		return CANONICAL_JCS;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("there is no canonical form \"%s\"",
					text_to_cstring(name)),
			 errhint("Use \"exact\", which keeps every digit, or \"jcs\", which refuses numbers that RFC 8785 might write in another way.")));
}

/* Sink: append to a StringInfo. */
static void
append_text(void *ctx, const char *data, size_t len)
{
	CHECK_FOR_INTERRUPTS();
	appendBinaryStringInfo((StringInfo) ctx, data, (int) len);
}

static void
begin_text(CanonicalSink *sink, StringInfo result)
{
	initStringInfo(result);
	appendStringInfoSpaces(result, VARHDRSZ);
	canonical_init(sink, append_text, result);
}

/* The text that the sink got, in the encoding of the database. */
static text *
finish_text(CanonicalSink *sink, StringInfo result)
{
	canonical_flush(sink);
	if (GetDatabaseEncoding() == PG_UTF8)
	{
		SET_VARSIZE(result->data, result->len);
		return (text *) result->data;
	}
	return cstring_to_text(pg_any_to_server(result->data + VARHDRSZ,
											result->len - VARHDRSZ, PG_UTF8));
}

/*
 * idem_canonical(body jsonb, mode text DEFAULT 'exact') -> text
 *
 * The canonical text of a JSON value: RFC 8785's layout (no white space, names
 * in the order of their UTF-16 code units, shortest escapes) with exact
 * numbers (see canonical.c).  It is in the encoding of the database.
 *
 *	body	any JSON value; NULL gives NULL
 *	mode	exact; or jcs, which refuses numbers that RFC 8785 might write in
 *			another way
 *
 * Raises 22023 for another mode, 54000 (program_limit_exceeded) when the text
 * would not fit into 1 GB, and what idem_write_jsonb raises.
 *
 * Reads and writes no table; works in any transaction, a read-only one or one
 * on a standby too, and leaves no state behind.
 */
PG_FUNCTION_INFO_V1(idem_canonical);
Datum
idem_canonical(PG_FUNCTION_ARGS)
{
	Jsonb	   *body = PG_GETARG_JSONB_P(0);
	CanonicalMode mode = idem_canonical_mode(PG_GETARG_TEXT_PP(1));
	CanonicalSink sink;
	StringInfoData result;

	begin_text(&sink, &result);
	idem_write_jsonb(&sink, body, mode);
	PG_FREE_IF_COPY(body, 0);
	PG_RETURN_TEXT_P(finish_text(&sink, &result));
}

/*
 * idem_canonical(body text, mode text DEFAULT 'exact') -> text
 *
 * The same for JSON text, which is read strictly: jsonb has lost what parsers
 * read in different ways, such as repeated names.
 *
 *	body	JSON text (RFC 8259); NULL gives NULL
 *	mode	as above
 *
 * Raises 22023 for another mode, 54000 (program_limit_exceeded) when the text
 * would not fit into 1 GB, 22P05 when it has a character that the encoding of
 * the database lacks, and what idem_write_text raises.
 */
PG_FUNCTION_INFO_V1(idem_canonical_text);
Datum
idem_canonical_text(PG_FUNCTION_ARGS)
{
	text	   *body = PG_GETARG_TEXT_PP(0);
	CanonicalMode mode = idem_canonical_mode(PG_GETARG_TEXT_PP(1));
	CanonicalSink sink;
	StringInfoData result;

	begin_text(&sink, &result);
	idem_write_text(&sink, body, mode);
	PG_FREE_IF_COPY(body, 0);
	PG_RETURN_TEXT_P(finish_text(&sink, &result));
}
