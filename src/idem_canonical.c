/*-------------------------------------------------------------------------
 *
 * idem_canonical.c
 *	  idem_canonical(jsonb) and idem_canonical(text).
 *
 * One walk over a jsonb value, or canonical_text.c over a text, writes the
 * canonical text, in UTF-8, into a sink.  Numbers of a jsonb value are taken
 * from the numeric's own digits, so memory is bounded by the depth and the
 * widest object, and 1e131071 costs as much as 1.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "canonical_text.h"
#include "compat.h"
#include "idem_canonical.h"

/* Wire format of numeric: four 16-bit fields, then digits of base 10000. */
#define WIRE_HEADER_SIZE 8
#define WIRE_POSITIVE 0x0000
#define WIRE_NEGATIVE 0x4000
#define DIGITS_PER_WORD 4

/* Decimal digits that fit without allocating. */
#define SHORT_NUMBER_DIGITS 128

/* Strings of another encoding are converted in pieces of this many bytes. */
#define CONVERSION_PIECE 65536

/* Of a number in an error message. */
#define SHOWN_NUMBER_LEN 40

/* Members that fit without allocating. */
#define SMALL_MEMBERS 32

/* The encoding of the database, and what turns it into UTF-8. */
typedef struct Encoding
{
	int			encoding;
	Oid			to_utf8;		/* conversion, once one was needed */
} Encoding;

typedef struct CanonicalWalk
{
	CanonicalSink *sink;
	CanonicalMode mode;
	int			depth;			/* open arrays and objects */
	Encoding	encoding;

	/* members of the open objects, outer ones first */
	CanonicalMember *members;
	size_t		nmembers;
	size_t		members_space;
	CanonicalMember small_members[SMALL_MEMBERS];
} CanonicalWalk;

static void write_container(CanonicalWalk *walk, JsonbContainer *container);

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

/*
 * Strings
 */

/* Complain about a string that the canonical form can't hold. */
static void
report_no_utf8(const Encoding *encoding)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			 errmsg("a string in the JSON value has no UTF-8 form"),
			 errdetail("The canonical form is UTF-8, and the encoding of this database is \"%s\".",
					   pg_encoding_to_char(encoding->encoding)),
			 errhint("Store JSON with such strings in a database with encoding \"UTF8\".")));
}

static void
init_encoding(Encoding *encoding)
{
	encoding->encoding = GetDatabaseEncoding();
	encoding->to_utf8 = InvalidOid;
}

/*
 * Convert a string of another server encoding.  The conversion is looked up in
 * pg_catalog only: a default conversion that someone put into the search path
 * must not change a hash.  Text of 1 GB may become longer than an int can say,
 * so the conversion goes piece by piece.
 */
static char *
convert_to_utf8(Encoding *encoding, const char *str, size_t len, size_t *utf8_len)
{
	size_t		space = Min(len, CONVERSION_PIECE) * MAX_CONVERSION_GROWTH + 1;
	size_t		used = 0;
	char	   *utf8;

	if (!OidIsValid(encoding->to_utf8))
		encoding->to_utf8 = FindDefaultConversion(PG_CATALOG_NAMESPACE,
												  encoding->encoding, PG_UTF8);
	if (!OidIsValid(encoding->to_utf8))
		report_no_utf8(encoding);

	utf8 = palloc(space);
	while (len > 0)
	{
		int			piece = pg_encoding_mbcliplen(encoding->encoding, str,
												  (int) Min(len, CONVERSION_PIECE),
												  CONVERSION_PIECE);
		size_t		needed = used + (size_t) piece * MAX_CONVERSION_GROWTH + 1;

		CHECK_FOR_INTERRUPTS();
		if (needed > space)
		{
			space = Max(needed, 2 * space);
			utf8 = repalloc_huge(utf8, space);
		}
		if (piece == 0 ||
			pg_do_encoding_conversion_buf(encoding->to_utf8,
										  encoding->encoding, PG_UTF8,
										  unconstify(unsigned char *,
													 (const unsigned char *) str),
										  piece,
										  (unsigned char *) utf8 + used,
										  piece * MAX_CONVERSION_GROWTH + 1,
										  true) != piece)
			report_no_utf8(encoding);
		used += strlen(utf8 + used);
		str += piece;
		len -= piece;
	}
	*utf8_len = used;
	return utf8;
}

/*
 * A string of the database as UTF-8: itself, or a copy to be freed.  Bytes of a
 * SQL_ASCII database say nothing of their encoding; they are taken as they are,
 * and the caller has to make sure that they are valid UTF-8.
 */
static const char *
to_utf8(Encoding *encoding, const char *str, size_t len, size_t *utf8_len)
{
	size_t		at = 0;

	*utf8_len = len;
	if (encoding->encoding == PG_UTF8 || encoding->encoding == PG_SQL_ASCII)
		return str;

	/* ASCII is the same in every encoding a server can have. */
	while (at < len && !IS_HIGHBIT_SET(str[at]))
		at++;
	return at == len ? str : convert_to_utf8(encoding, str, len, utf8_len);
}

/* to_utf8 for a string that nothing else will check */
static const char *
to_valid_utf8(Encoding *encoding, const char *str, int len, size_t *utf8_len)
{
	if (encoding->encoding == PG_SQL_ASCII &&
		!pg_verify_mbstr(PG_UTF8, str, len, true))
		report_no_utf8(encoding);
	return to_utf8(encoding, str, (size_t) len, utf8_len);
}

static void
write_string(CanonicalSink *sink, Encoding *encoding, const char *str, int len)
{
	size_t		utf8_len;
	const char *utf8 = to_valid_utf8(encoding, str, len, &utf8_len);

	canonical_string(sink, utf8, utf8_len);
	if (utf8 != str)
		pfree(unconstify(char *, utf8));
}

/*
 * Write a string of the database as a JSON string.  Raises 22021 when it has no
 * UTF-8 form.
 */
void
idem_write_string(CanonicalSink *sink, const char *str, int len)
{
	Encoding	encoding;

	init_encoding(&encoding);
	write_string(sink, &encoding, str, len);
}

/*
 * Numbers
 */

static inline int
wire_word(const unsigned char *wire)
{
	return wire[0] << 8 | wire[1];
}

/* Complain about a number that mode jcs refuses. */
static void
report_not_jcs(Numeric number)
{
	char	   *str = DatumGetCString(DirectFunctionCall1(numeric_out,
														  NumericGetDatum(number)));
	int			len = strlen(str);

	ereport(ERROR,
			(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
			 errmsg("number %.*s%s has no canonical form in mode \"jcs\"",
					SHOWN_NUMBER_LEN, str, len > SHOWN_NUMBER_LEN ? "..." : ""),
			 errdetail("RFC 8785 writes the nearest double, which may stand for another number."),
			 errhint("Use mode \"exact\", or send the number as a string.")));
}

/*
 * A number, from the digits of numeric's binary output.  That is the public
 * form that holds them as they are stored; the text form would write out
 * every zero of 1e131071.
 */
static void
write_number(CanonicalWalk *walk, Numeric numeric)
{
	bytea	   *wire = DatumGetByteaPP(DirectFunctionCall1(numeric_send,
														   NumericGetDatum(numeric)));
	const unsigned char *header = (const unsigned char *) VARDATA_ANY(wire);
	const unsigned char *word = header + WIRE_HEADER_SIZE;
	int			nwords = wire_word(header);
	int			weight = (int16) wire_word(header + 2);
	int			sign = wire_word(header + 4);
	char		short_digits[SHORT_NUMBER_DIGITS];
	char	   *digits = short_digits;
	char	   *digit;
	CanonicalNumber number;
	int			i;

	if (sign != WIRE_POSITIVE && sign != WIRE_NEGATIVE)
		elog(ERROR, "a number in a jsonb value is not finite");

	number.negative = sign == WIRE_NEGATIVE;
	number.ndigits = (size_t) nwords * DIGITS_PER_WORD;
	number.point = (weight + 1) * DIGITS_PER_WORD;
	if (number.ndigits > SHORT_NUMBER_DIGITS)
		digits = palloc(number.ndigits);
	number.digits = digit = digits;
	for (i = 0; i < nwords; i++, word += 2)
	{
		int			four = wire_word(word);

		*digit++ = '0' + four / 1000;
		*digit++ = '0' + four / 100 % 10;
		*digit++ = '0' + four / 10 % 10;
		*digit++ = '0' + four % 10;
	}
	canonical_number_trim(&number);
	if (walk->mode == CANONICAL_JCS && !canonical_number_is_jcs(&number))
		report_not_jcs(numeric);
	canonical_number(walk->sink, &number);

	if (digits != short_digits)
		pfree(digits);
	pfree(wire);
}

/*
 * jsonb.  Its arrays of entries are read as they are stored, by the macros of
 * utils/jsonb.h: an iterator allocates for each container.
 */

/* The value of "entry", whose data are at "offset" from "base". */
static void
write_entry(CanonicalWalk *walk, JEntry entry, char *base, uint32 offset,
			uint32 len)
{
	CanonicalSink *sink = walk->sink;

	switch (entry & JENTRY_TYPEMASK)
	{
		case JENTRY_ISSTRING:
			write_string(sink, &walk->encoding, base + offset, (int) len);
			break;
		case JENTRY_ISNUMERIC:
			write_number(walk, (Numeric) (base + INTALIGN(offset)));
			break;
		case JENTRY_ISBOOL_TRUE:
			canonical_bytes(sink, "true", 4);
			break;
		case JENTRY_ISBOOL_FALSE:
			canonical_bytes(sink, "false", 5);
			break;
		case JENTRY_ISNULL:
			canonical_bytes(sink, "null", 4);
			break;
		case JENTRY_ISCONTAINER:
			write_container(walk, (JsonbContainer *) (base + INTALIGN(offset)));
			break;
		default:
			elog(ERROR, "unexpected type in a jsonb value");
	}
}

/* Length of an entry's data, which begin at "offset". */
static inline uint32
entry_length(JEntry entry, uint32 offset)
{
	uint32		len = JBE_OFFLENFLD(entry);

	return JBE_HAS_OFF(entry) ? len - offset : len;
}

/*
 * The elements of an array.  A scalar at the root is stored as an array of one
 * element, and is written without brackets.
 */
static void
write_array(CanonicalWalk *walk, JsonbContainer *array)
{
	uint32		n = JsonContainerSize(array);
	bool		brackets = !JsonContainerIsScalar(array);
	char	   *base = (char *) &array->children[n];
	uint32		offset = 0;
	uint32		i;

	if (brackets)
		canonical_char(walk->sink, '[');
	for (i = 0; i < n; i++)
	{
		JEntry		entry = array->children[i];

		if (i > 0)
			canonical_char(walk->sink, ',');
		write_entry(walk, entry, base, offset, entry_length(entry, offset));
		JBE_ADVANCE_OFFSET(offset, entry);
	}
	if (brackets)
		canonical_char(walk->sink, ']');
}

/* Make room for "n" members more, and what sorting them takes. */
static void
reserve_members(CanonicalWalk *walk, size_t n)
{
	size_t		needed = walk->nmembers + canonical_sort_space(n);
	Size		size;

	if (needed <= walk->members_space)
		return;
	while (walk->members_space < needed)
		walk->members_space *= 2;
	size = walk->members_space * sizeof(CanonicalMember);
	if (walk->members == walk->small_members)
	{
		walk->members = MemoryContextAllocHuge(CurrentMemoryContext, size);
		memcpy(walk->members, walk->small_members, sizeof(walk->small_members));
	}
	else
		walk->members = repalloc_huge(walk->members, size);
}

/* canonical_sort_members: sorting millions of names takes seconds */
static void
check_interrupts(void *ctx pg_attribute_unused())
{
	CHECK_FOR_INTERRUPTS();
}

/*
 * The members of an object.  jsonb keeps shorter names first, so they are
 * sorted anew.
 */
static void
write_object(CanonicalWalk *walk, JsonbContainer *object)
{
	uint32		n = JsonContainerSize(object);
	const JEntry *values = object->children + n;
	char	   *base = (char *) &object->children[2 * n];
	size_t		first = walk->nmembers;
	bool		converted = false;
	uint32		offset = 0;
	CanonicalMember *member;
	size_t		utf8_len;
	uint32		i;

	reserve_members(walk, n);
	member = walk->members + first;
	for (i = 0; i < n; i++)
	{
		JEntry		entry = object->children[i];

		member[i].name = to_valid_utf8(&walk->encoding, base + offset,
									   (int) entry_length(entry, offset), &utf8_len);
		converted |= member[i].name != base + offset;
		member[i].name_len = (uint32_t) utf8_len;
		member[i].entry = i;
		JBE_ADVANCE_OFFSET(offset, entry);
	}
	for (i = 0; i < n; i++)
	{
		member[i].value = offset;
		JBE_ADVANCE_OFFSET(offset, values[i]);
	}
	walk->nmembers += n;
	canonical_sort_members(member, n, check_interrupts, NULL);

	canonical_char(walk->sink, '{');
	for (i = 0; i < n; i++)
	{
		JEntry		entry;

		/* values move the array */
		member = &walk->members[first + i];
		entry = values[member->entry];
		if (i > 0)
			canonical_char(walk->sink, ',');
		canonical_string(walk->sink, member->name, member->name_len);
		canonical_char(walk->sink, ':');
		if (converted && (member->name < base || member->name >= base + offset))
			pfree(unconstify(char *, member->name));
		write_entry(walk, entry, base, member->value,
					entry_length(entry, member->value));
	}
	canonical_char(walk->sink, '}');
	walk->nmembers = first;
}

/* An array or an object, or a scalar at the root. */
static void
write_container(CanonicalWalk *walk, JsonbContainer *container)
{
	check_stack_depth();
	if (JsonContainerIsScalar(container))
	{
		write_array(walk, container);
		return;
	}
	if (++walk->depth > CANONICAL_MAX_DEPTH)
		ereport(ERROR,
				(errcode(ERRCODE_STATEMENT_TOO_COMPLEX),
				 errmsg("JSON value is nested more than %d levels deep",
						CANONICAL_MAX_DEPTH),
				 errhint("Hash only the part of the value that matters, or send one that is nested less deeply.")));
	if (JsonContainerIsArray(container))
		write_array(walk, container);
	else
		write_object(walk, container);
	walk->depth--;
}

/*
 * Write the canonical text of a jsonb value, as UTF-8, piece by piece.  The
 * caller flushes the sink.
 *
 * Raises 54001 when arrays and objects are nested more than 1,000 levels deep,
 * 22003 for a number that mode jcs refuses, 22021 when a string of a database
 * that is not UTF-8 has no UTF-8 form.
 */
void
idem_write_jsonb(CanonicalSink *sink, const Jsonb *value, CanonicalMode mode)
{
	CanonicalWalk walk;

	walk.sink = sink;
	walk.mode = mode;
	walk.depth = 0;
	init_encoding(&walk.encoding);
	walk.members = walk.small_members;
	walk.nmembers = 0;
	walk.members_space = SMALL_MEMBERS;
	write_container(&walk, &unconstify(Jsonb *, value)->root);
	if (walk.members != walk.small_members)
		pfree(walk.members);
}

/*
 * Text
 */

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
	int			shown = (int) Min(error->len, SHOWN_NUMBER_LEN);
	const char *dots = error->len > SHOWN_NUMBER_LEN ? "..." : "";
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
 * more than 1,000 levels, 54000 for more than 2 GB of UTF-8.
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
	Encoding	encoding;
	CanonicalTextError error;
	const char *utf8;
	size_t		len;

	/* What it takes for 1,000 levels is within what the server keeps in reserve. */
	check_stack_depth();
	init_encoding(&encoding);
	utf8 = to_utf8(&encoding, str, VARSIZE_ANY_EXHDR(json), &len);
	if (!canonical_text(sink, utf8, len, mode, &host, &error))
		report_text(&error, utf8);
	if (utf8 != str)
		pfree(unconstify(char *, utf8));
}

/*
 * The SQL functions
 */

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
