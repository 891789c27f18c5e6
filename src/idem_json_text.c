/*-------------------------------------------------------------------------
 *
 * idem_json_text.c
 *	  Canonical form of JSON text in the server: memory, interrupts, errors.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "canonical_text.h"
#include "compat.h"
#include "idem_canonical.h"
#include "idem_utf8.h"

static void
check_interrupts(void *ctx pg_attribute_unused())
{
	CHECK_FOR_INTERRUPTS();
}

static void *
resize_block(void *ctx pg_attribute_unused(), void *block, size_t size)
{
	if (block == NULL)
		return MemoryContextAllocHuge(CurrentMemoryContext, size);
	return repalloc_huge(block, size);
}

static void
release_block(void *ctx pg_attribute_unused(), void *block)
{
	pfree(block);
}

/* Say what is wrong with a text: SQLSTATE, message and what helps. */
static void
report_text(const CanonicalTextError *error, const char *utf8)
{
	size_t		byte = error->at + 1;
	int			shown = (int) Min(error->len, IDEM_SHOWN_NUMBER_LEN);
	const char *dots = error->len > IDEM_SHOWN_NUMBER_LEN ? "..." : "";
	const char *begin = utf8 + error->at;

	switch (error->fault)
	{
		case CANONICAL_TEXT_TOO_LONG:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("JSON text is longer than %d bytes in UTF-8",
							CANONICAL_TEXT_MAX)));
		case CANONICAL_TEXT_BYTE_ORDER_MARK:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text begins with a byte-order mark, at byte %zu", byte),
					 errhint("Send the text without the first three bytes, EF BB BF.")));
		case CANONICAL_TEXT_ENDS_EARLY:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text ends too early, at byte %zu", byte)));
		case CANONICAL_TEXT_NO_VALUE:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text has no value at byte %zu, where one has to be", byte)));
		case CANONICAL_TEXT_NO_NAME:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text has no member name at byte %zu, where one has to be", byte)));
		case CANONICAL_TEXT_NO_COLON:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text has no colon behind a member name, at byte %zu", byte)));
		case CANONICAL_TEXT_NO_COMMA:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text has neither a comma nor a closing bracket behind a value, at byte %zu", byte)));
		case CANONICAL_TEXT_GOES_ON:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON text goes on behind its value, at byte %zu", byte)));
		case CANONICAL_TEXT_TOO_DEEP:
			ereport(ERROR,
					(errcode(ERRCODE_STATEMENT_TOO_COMPLEX),
					 errmsg("JSON text is nested more than %d levels deep, at byte %zu",
							CANONICAL_MAX_DEPTH, byte),
					 errhint("Hash only the part of the text that matters, or send one that is nested less deeply.")));
		case CANONICAL_TEXT_CONTROL:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON string has a control character at byte %zu that is not escaped", byte)));
		case CANONICAL_TEXT_ESCAPE:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON string has an invalid escape at byte %zu", byte)));
		case CANONICAL_TEXT_NUL:
			ereport(ERROR,
					(errcode(ERRCODE_UNTRANSLATABLE_CHARACTER),
					 errmsg("JSON string has \\u0000 at byte %zu", byte),
					 errdetail("Neither text nor jsonb can hold that character.")));
		case CANONICAL_TEXT_SURROGATE:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON string has a surrogate without its other half at byte %zu", byte)));
		case CANONICAL_TEXT_UTF8:
			ereport(ERROR,
					(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
					 errmsg("JSON text is not valid UTF-8 at byte %zu", byte)));
		case CANONICAL_TEXT_NUMBER:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("JSON number goes wrong at byte %zu", byte)));
		case CANONICAL_TEXT_RANGE:
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("JSON number %.*s%s at byte %zu is out of range",
							shown, begin, dots, byte),
					 errdetail("A number can have up to %d digits before the decimal point and %d behind it.",
							   CANONICAL_WHOLE_DIGITS_MAX, CANONICAL_FRACTION_DIGITS_MAX)));
		case CANONICAL_TEXT_JCS:
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("JSON number %.*s%s at byte %zu has no canonical form in mode \"jcs\"",
							shown, begin, dots, byte),
					 errdetail("RFC 8785 writes the nearest double, which may stand for another number."),
					 errhint("Use mode \"exact\", or send the number as a string.")));
		case CANONICAL_TEXT_DUPLICATE:
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_JSON_OBJECT_KEY_VALUE),
					 errmsg("JSON object has a member name for the second time at byte %zu", byte)));
		case CANONICAL_TEXT_TOO_MANY_MEMBERS:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("JSON text has too many members at byte %zu", byte),
					 errdetail("The objects that are open at one place of the text can have %d members together.",
							   CANONICAL_MEMBERS_MAX)));
		case CANONICAL_TEXT_NO_MEMORY:
		case CANONICAL_TEXT_FINE:
			break;
	}
	elog(ERROR, "unexpected fault %d in JSON text", (int) error->fault);
}

/*
 * Write the canonical text of a JSON text, as UTF-8, piece by piece.  The
 * caller flushes the sink.
 *
 * Raises what canonical_text refuses, each with its own message that names the
 * byte, counted from 1 in the text's UTF-8 form: 22P02 for what is not JSON
 * text, 22P05 for \u0000, 22021 for invalid UTF-8, 22030 for a repeated name,
 * 22003 for a number that is out of range or that mode jcs refuses, 54001 for
 * more than 1,000 levels, 54000 for more than 2 GB of UTF-8 or 16,777,216
 * members of objects that are open at one place.
 */
void
idem_write_text(CanonicalSink *sink, const text *json, CanonicalMode mode)
{
	static const CanonicalTextHost host = {
		.resize = resize_block,
		.release = release_block,
		.tick = check_interrupts
	};
	const char *str = VARDATA_ANY(json);
	Utf8Source	source;
	CanonicalTextError error;
	const char *utf8;
	size_t		len;

	/* What it takes for 1,000 levels is within what the server keeps in reserve. */
	check_stack_depth();
	utf8_source_init(&source);
	utf8 = utf8_from_database(&source, str, VARSIZE_ANY_EXHDR(json), &len);
	if (!canonical_text(sink, utf8, len, mode, &host, &error))
		report_text(&error, utf8);
	if (utf8 != str)
		pfree(unconstify(char *, utf8));
}

