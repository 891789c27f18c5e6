/*-------------------------------------------------------------------------
 *
 * idem_hash.c
 *	  idem_canonical(jsonb) and idem_hash(jsonb).
 *
 * One walk over a jsonb value writes its canonical text, in UTF-8, into a
 * sink: SHA-256 or a text.  The text is never built for the hash, and numbers
 * are taken from the numeric's own digits, so memory is bounded by the depth
 * and the widest object, and 1e131071 costs as much as 1.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "common/cryptohash.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "canonical.h"
#include "compat.h"
#include "idem_hash.h"

/*
 * Fixed, not a setting: a function that is IMMUTABLE can't have its errors
 * depend on one.
 */
#define MAX_DEPTH 1000

/* Wire format of numeric: four 16-bit fields, then digits of base 10000. */
#define WIRE_HEADER_SIZE 8
#define WIRE_POSITIVE 0x0000
#define WIRE_NEGATIVE 0x4000
#define DIGITS_PER_WORD 4

/* Decimal digits that fit without allocating. */
#define SHORT_NUMBER_DIGITS 128

typedef struct CanonicalWalk
{
	CanonicalSink sink;
	int			depth;			/* open arrays and objects */
	int			encoding;		/* of the database */
	Oid			to_utf8;		/* conversion, once one was needed */
} CanonicalWalk;

/* A string of the value as UTF-8; "copy" is what to free, or NULL. */
typedef struct Utf8String
{
	const char *data;
	int			len;
	char	   *copy;
} Utf8String;

typedef struct ObjectMember
{
	Utf8String	name;
	JsonbValue	value;
} ObjectMember;

static void write_value(CanonicalWalk *walk, const JsonbValue *value);
static void write_container(CanonicalWalk *walk, JsonbContainer *container);

/* Complain about a string that the canonical form can't hold. */
static void
report_no_utf8(const CanonicalWalk *walk)
{
	ereport(ERROR,
			(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			 errmsg("a string in the JSON value has no UTF-8 form"),
			 errdetail("The canonical form is UTF-8, and the encoding of this database is \"%s\".",
					   pg_encoding_to_char(walk->encoding)),
			 errhint("Store JSON with such strings in a database with encoding \"UTF8\".")));
}

/*
 * Convert a string of another server encoding.  The conversion is looked up in
 * pg_catalog only: a default conversion that someone put into the search path
 * must not change a hash.
 */
static void
convert_to_utf8(CanonicalWalk *walk, const char *str, int len, Utf8String *utf8)
{
	Size		size = (Size) len * MAX_CONVERSION_GROWTH + 1;

	if (!OidIsValid(walk->to_utf8))
		walk->to_utf8 = FindDefaultConversion(PG_CATALOG_NAMESPACE,
											  walk->encoding, PG_UTF8);
	if (!OidIsValid(walk->to_utf8))
		report_no_utf8(walk);

	utf8->copy = MemoryContextAllocHuge(CurrentMemoryContext, size);
	if (pg_do_encoding_conversion_buf(walk->to_utf8, walk->encoding, PG_UTF8,
									  unconstify(unsigned char *,
												 (const unsigned char *) str),
									  len,
									  (unsigned char *) utf8->copy, (int) size,
									  true) != len)
		report_no_utf8(walk);
	utf8->data = utf8->copy;
	utf8->len = strlen(utf8->copy);
}

/*
 * A string of the value as UTF-8.  Bytes of a SQL_ASCII database say nothing of
 * their encoding; they are taken when they are valid UTF-8.
 */
static void
set_utf8(CanonicalWalk *walk, const JsonbValue *value, Utf8String *utf8)
{
	const char *str = value->val.string.val;
	int			len = value->val.string.len;
	int			at = 0;

	Assert(value->type == jbvString);

	if (walk->encoding != PG_UTF8)
	{
		/* ASCII is the same in every encoding a server can have. */
		while (at < len && !IS_HIGHBIT_SET(str[at]))
			at++;
		if (at < len && walk->encoding != PG_SQL_ASCII)
		{
			convert_to_utf8(walk, str, len, utf8);
			return;
		}
		if (at < len && !pg_verify_mbstr(PG_UTF8, str, len, true))
			report_no_utf8(walk);
	}
	utf8->data = str;
	utf8->len = len;
	utf8->copy = NULL;
}

static void
write_utf8(CanonicalWalk *walk, const Utf8String *utf8)
{
	canonical_string(&walk->sink, utf8->data, (size_t) utf8->len);
	if (utf8->copy != NULL)
		pfree(utf8->copy);
}

static inline int
wire_word(const unsigned char *wire)
{
	return wire[0] << 8 | wire[1];
}

/*
 * A number, from the digits of numeric's binary output.  That is the public
 * form that holds them as they are stored; the text form would write out
 * every zero of 1e131071.
 */
static void
write_number(CanonicalWalk *walk, Numeric number)
{
	bytea	   *wire = DatumGetByteaPP(DirectFunctionCall1(numeric_send,
														   NumericGetDatum(number)));
	const unsigned char *header = (const unsigned char *) VARDATA_ANY(wire);
	const unsigned char *word = header + WIRE_HEADER_SIZE;
	int			nwords = wire_word(header);
	int			weight = (int16) wire_word(header + 2);
	int			sign = wire_word(header + 4);
	char		short_digits[SHORT_NUMBER_DIGITS];
	char	   *digits = short_digits;
	char	   *digit;
	int			ndigits = nwords * DIGITS_PER_WORD;
	int			i;

	if (sign != WIRE_POSITIVE && sign != WIRE_NEGATIVE)
		elog(ERROR, "a number in a jsonb value is not finite");

	if (ndigits > SHORT_NUMBER_DIGITS)
		digits = palloc(ndigits);
	digit = digits;
	for (i = 0; i < nwords; i++, word += 2)
	{
		int			four = wire_word(word);

		*digit++ = '0' + four / 1000;
		*digit++ = '0' + four / 100 % 10;
		*digit++ = '0' + four / 10 % 10;
		*digit++ = '0' + four % 10;
	}
	canonical_number(&walk->sink, sign == WIRE_NEGATIVE,
					 digits, (size_t) ndigits, (weight + 1) * DIGITS_PER_WORD);

	if (digits != short_digits)
		pfree(digits);
	pfree(wire);
}

/*
 * The elements of an array; "it" stands behind its beginning.  A scalar at the
 * root is stored as an array of one element, and is written without brackets.
 */
static void
write_elements(CanonicalWalk *walk, JsonbIterator *it, bool is_scalar)
{
	JsonbValue	element;
	bool		first = true;

	if (!is_scalar)
		canonical_char(&walk->sink, '[');
	while (JsonbIteratorNext(&it, &element, true) == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		if (!first)
			canonical_char(&walk->sink, ',');
		first = false;
		write_value(walk, &element);
	}
	if (!is_scalar)
		canonical_char(&walk->sink, ']');
}

/* qsort comparator: pointers to members by name, in UTF-16 order */
static int
compare_members(const void *a, const void *b)
{
	const Utf8String *aname = &(*(ObjectMember *const *) a)->name;
	const Utf8String *bname = &(*(ObjectMember *const *) b)->name;

	/* Sorting millions of names takes seconds. */
	CHECK_FOR_INTERRUPTS();
	return canonical_compare_names(aname->data, (size_t) aname->len,
								   bname->data, (size_t) bname->len);
}

/*
 * The members of an object; "it" stands behind its beginning.  jsonb keeps
 * shorter names first, so they are sorted anew, by way of pointers, which are
 * cheaper to swap.
 */
static void
write_members(CanonicalWalk *walk, JsonbIterator *it, int nmembers)
{
	Size		space = (Size) nmembers * (sizeof(ObjectMember) + sizeof(ObjectMember *));
	ObjectMember *members = MemoryContextAllocHuge(CurrentMemoryContext, space);
	ObjectMember **sorted = (ObjectMember **) (members + nmembers);
	JsonbValue	name;
	int			i;

	for (i = 0; JsonbIteratorNext(&it, &name, true) == WJB_KEY; i++)
	{
		CHECK_FOR_INTERRUPTS();
		set_utf8(walk, &name, &members[i].name);
		(void) JsonbIteratorNext(&it, &members[i].value, true);
		sorted[i] = &members[i];
	}
	Assert(i == nmembers);
	qsort(sorted, nmembers, sizeof(ObjectMember *), compare_members);

	canonical_char(&walk->sink, '{');
	for (i = 0; i < nmembers; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0)
			canonical_char(&walk->sink, ',');
		write_utf8(walk, &sorted[i]->name);
		canonical_char(&walk->sink, ':');
		write_value(walk, &sorted[i]->value);
	}
	canonical_char(&walk->sink, '}');
	pfree(members);
}

/* An array or an object, or a scalar at the root. */
static void
write_container(CanonicalWalk *walk, JsonbContainer *container)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbValue	begin;

	check_stack_depth();
	if (JsonbIteratorNext(&it, &begin, true) == WJB_BEGIN_ARRAY &&
		begin.val.array.rawScalar)
	{
		write_elements(walk, it, true);
		return;
	}

	if (++walk->depth > MAX_DEPTH)
		ereport(ERROR,
				(errcode(ERRCODE_STATEMENT_TOO_COMPLEX),
				 errmsg("JSON value is nested more than %d levels deep",
						MAX_DEPTH),
				 errhint("Hash only the part of the value that matters, or send one that is nested less deeply.")));
	if (begin.type == jbvArray)
		write_elements(walk, it, false);
	else
		write_members(walk, it, begin.val.object.nPairs);
	walk->depth--;
}

/* A scalar, or an array or object as jsonb stores it inside another. */
static void
write_value(CanonicalWalk *walk, const JsonbValue *value)
{
	Utf8String	utf8;

	switch (value->type)
	{
		case jbvNull:
			canonical_bytes(&walk->sink, "null", 4);
			break;
		case jbvBool:
			if (value->val.boolean)
				canonical_bytes(&walk->sink, "true", 4);
			else
				canonical_bytes(&walk->sink, "false", 5);
			break;
		case jbvNumeric:
			write_number(walk, value->val.numeric);
			break;
		case jbvString:
			set_utf8(walk, value, &utf8);
			write_utf8(walk, &utf8);
			break;
		case jbvBinary:
			write_container(walk, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected type %d in a jsonb value",
				 (int) value->type);
	}
}

/* Write the canonical text of a value, as UTF-8, piece by piece. */
static void
write_canonical(const Jsonb *value,
				void (*write) (void *ctx, const char *data, size_t len),
				void *ctx)
{
	CanonicalWalk walk;

	canonical_init(&walk.sink, write, ctx);
	walk.depth = 0;
	walk.encoding = GetDatabaseEncoding();
	walk.to_utf8 = InvalidOid;
	write_container(&walk, &unconstify(Jsonb *, value)->root);
	canonical_flush(&walk.sink);
}

/* Sink: append to a StringInfo. */
static void
append_text(void *ctx, const char *data, size_t len)
{
	CHECK_FOR_INTERRUPTS();
	appendBinaryStringInfo((StringInfo) ctx, data, (int) len);
}

/* Sink: feed SHA-256. */
static void
update_hash(void *ctx, const char *data, size_t len)
{
	pg_cryptohash_ctx *hash = (pg_cryptohash_ctx *) ctx;

	CHECK_FOR_INTERRUPTS();
	if (pg_cryptohash_update(hash, (const uint8 *) data, len) < 0)
		elog(ERROR, "could not update SHA-256: %s", pg_cryptohash_error(hash));
}

/*
 * SHA-256 of the canonical text of a value.  Raises what idem_hash raises; the
 * hash state belongs to the current resource owner, which frees it then.
 */
void
idem_hash_jsonb(const Jsonb *value, uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	pg_cryptohash_ctx *hash = pg_cryptohash_create(PG_SHA256);

	if (pg_cryptohash_init(hash) < 0)
		elog(ERROR, "could not initialize SHA-256: %s",
			 pg_cryptohash_error(hash));
	write_canonical(value, update_hash, hash);
	if (pg_cryptohash_final(hash, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not finalize SHA-256: %s",
			 pg_cryptohash_error(hash));
	pg_cryptohash_free(hash);
}

/*
 * idem_canonical(body jsonb) -> text
 *
 * The canonical text of a JSON value: RFC 8785's layout (no white space, names
 * in the order of their UTF-16 code units, shortest escapes) with exact
 * numbers (see canonical.c).  It is in the encoding of the database.
 *
 *	body	any JSON value; NULL gives NULL
 *
 * Raises 54001 (statement_too_complex) when arrays and objects are nested more
 * than 1,000 levels deep, 22021 (character_not_in_repertoire) when a string of
 * a database that is not UTF-8 has no UTF-8 form, 54000
 * (program_limit_exceeded) when the text would not fit into 1 GB.
 *
 * Reads and writes no table; works in any transaction, a read-only one or one
 * on a standby too, and leaves no state behind.
 */
PG_FUNCTION_INFO_V1(idem_canonical);
Datum
idem_canonical(PG_FUNCTION_ARGS)
{
	Jsonb	   *body = PG_GETARG_JSONB_P(0);
	StringInfoData text_form;
	text	   *result;

	initStringInfo(&text_form);
	appendStringInfoSpaces(&text_form, VARHDRSZ);
	write_canonical(body, append_text, &text_form);
	if (GetDatabaseEncoding() == PG_UTF8)
	{
		SET_VARSIZE(text_form.data, text_form.len);
		result = (text *) text_form.data;
	}
	else
		result = cstring_to_text(pg_any_to_server(text_form.data + VARHDRSZ,
												  text_form.len - VARHDRSZ,
												  PG_UTF8));
	PG_FREE_IF_COPY(body, 0);
	PG_RETURN_TEXT_P(result);
}

/*
 * idem_hash(body jsonb) -> bytea
 *
 * SHA-256 (32 bytes) of the canonical text of a JSON value as UTF-8 (RFC 8785's
 * layout, exact numbers; see idem_canonical), with nothing before or after it.
 * The text itself is not built.  Two values have one hash exactly when jsonb
 * calls them equal, whatever the database's encoding.
 *
 *	body	any JSON value; NULL gives NULL
 *
 * Raises 54001 (statement_too_complex) when arrays and objects are nested more
 * than 1,000 levels deep, 22021 (character_not_in_repertoire) when a string of
 * a database that is not UTF-8 has no UTF-8 form.
 *
 * Reads and writes no table; works in any transaction, a read-only one or one
 * on a standby too, and leaves no state behind.
 */
PG_FUNCTION_INFO_V1(idem_hash);
Datum
idem_hash(PG_FUNCTION_ARGS)
{
	Jsonb	   *body = PG_GETARG_JSONB_P(0);
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	idem_hash_jsonb(body, (uint8 *) VARDATA(result));
	PG_FREE_IF_COPY(body, 0);
	PG_RETURN_BYTEA_P(result);
}
