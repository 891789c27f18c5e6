/*-------------------------------------------------------------------------
 *
 * idem_jsonb.c
 *	  Canonical form of a jsonb value.
 *
 * One walk over the value as it is stored, by the macros of utils/jsonb.h: an
 * iterator would allocate for each container.  Numbers are taken from the
 * numeric's own digits, so memory is bounded by the widest objects on one path,
 * and 1e131071 costs as much as 1.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "compat.h"
#include "idem_canonical.h"
#include "idem_utf8.h"

/* What fits without allocating. */
#define SHORT_NUMBER_DIGITS 128
#define SMALL_MEMBERS 32

/* In "entry" of a member, which is its number otherwise. */
#define NAME_IS_COPY 0x80000000

typedef struct CanonicalWalk
{
	CanonicalSink *sink;
	CanonicalMode mode;
	int			depth;			/* open arrays and objects */
	Utf8Source	source;

	/* members of the open objects, outer ones first */
	CanonicalMember *members;
	size_t		nmembers;
	size_t		members_space;
	CanonicalMember small_members[SMALL_MEMBERS];
} CanonicalWalk;

static void write_container(CanonicalWalk *walk, JsonbContainer *container);

/*
 * A numeric as it is stored.  The server keeps the struct to itself, but not
 * the form: it is that of the data files, the same since 9.1, and has to stay
 * for as long as pg_upgrade keeps data files.  numeric_send would tell the
 * digits too, at ten times the cost.
 *
 * Behind the length word there is one header word and, unless that has
 * NUMERIC_SHORT, a second with the weight; then the digits of base 10000, all
 * in the byte order of the machine.
 */
#define NUMERIC_KIND_MASK 0xC000
#define NUMERIC_NEGATIVE 0x4000
#define NUMERIC_SHORT 0x8000
#define NUMERIC_SPECIAL 0xC000
#define NUMERIC_SHORT_NEGATIVE 0x2000
#define NUMERIC_SHORT_WEIGHT_SIGN 0x0040
#define NUMERIC_SHORT_WEIGHT_MASK 0x003F
#define DIGITS_PER_WORD 4

/*
 * Take a numeric apart: "words" are "nwords" digits of base 10000, of which
 * the first stands for 10000^weight.
 */
static void
read_numeric(Numeric numeric, bool *negative, int *weight,
			 const uint16 **words, int *nwords)
{
	const uint16 *word = (const uint16 *) VARDATA(numeric);
	const uint16 header = word[0];
	int			nheader = 2;

	if (VARATT_IS_EXTENDED(numeric) ||
		(header & NUMERIC_KIND_MASK) == NUMERIC_SPECIAL)
		elog(ERROR, "unexpected number in a jsonb value");

	if ((header & NUMERIC_KIND_MASK) == NUMERIC_SHORT)
	{
		nheader = 1;
		*negative = (header & NUMERIC_SHORT_NEGATIVE) != 0;
		*weight = header & NUMERIC_SHORT_WEIGHT_MASK;
		if ((header & NUMERIC_SHORT_WEIGHT_SIGN) != 0)
			*weight |= ~NUMERIC_SHORT_WEIGHT_MASK;
	}
	else
	{
		*negative = (header & NUMERIC_KIND_MASK) == NUMERIC_NEGATIVE;
		*weight = (int16) word[1];
	}
	*words = word + nheader;
	*nwords = (int) (VARSIZE(numeric) - VARHDRSZ) / (int) sizeof(uint16) - nheader;
}

static void
write_string(CanonicalSink *sink, Utf8Source *source, const char *str, size_t len)
{
	size_t		utf8_len;
	const char *utf8;

	if (source->is_utf8)
	{
		canonical_string(sink, str, len);
		return;
	}
	utf8 = utf8_from_database_checked(source, str, len, &utf8_len);
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
	Utf8Source	source;

	utf8_source_init(&source);
	write_string(sink, &source, str, (size_t) len);
}

/* Sink: append to a StringInfo. */
static void
append_text(void *ctx, const char *data, size_t len)
{
	appendBinaryStringInfo((StringInfo) ctx, data, (int) len);
}

/*
 * Complain about a number that mode jcs refuses.  It is shown as mode exact
 * writes it: numeric_out would write every zero of 1e131071.
 */
static void
report_not_jcs(const CanonicalNumber *number)
{
	CanonicalSink sink;
	StringInfoData str;

	initStringInfo(&str);
	canonical_init(&sink, append_text, &str);
	canonical_number(&sink, number);
	canonical_flush(&sink);
	ereport(ERROR,
			(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
			 errmsg("number %.*s%s has no canonical form in mode \"jcs\"",
					IDEM_SHOWN_NUMBER_LEN, str.data,
					str.len > IDEM_SHOWN_NUMBER_LEN ? "..." : ""),
			 errdetail("RFC 8785 writes the nearest double, which may stand for another number."),
			 errhint("Use mode \"exact\", or send the number as a string.")));
}

/* Append the four decimal digits of a digit of base 10000. */
static inline void
put_word(char *to, uint16 word)
{
	uint32		high = word / 100;
	uint32		low = word % 100;

	to[0] = '0' + high / 10;
	to[1] = '0' + high % 10;
	to[2] = '0' + low / 10;
	to[3] = '0' + low % 10;
}

/* A number.  Written out, its text might have every zero of 1e131071. */
static void
write_number(CanonicalWalk *walk, Numeric numeric)
{
	const uint16 *word;
	int			nwords;
	int			weight;
	char		short_digits[SHORT_NUMBER_DIGITS];
	char	   *digits = short_digits;
	CanonicalNumber number;
	int			i;

	read_numeric(numeric, &number.negative, &weight, &word, &nwords);
	number.ndigits = (size_t) nwords * DIGITS_PER_WORD;
	number.point = (weight + 1) * DIGITS_PER_WORD;
	if (number.ndigits > SHORT_NUMBER_DIGITS)
		digits = palloc(number.ndigits);
	for (i = 0; i < nwords; i++)
		put_word(digits + i * DIGITS_PER_WORD, word[i]);
	number.digits = digits;
	canonical_number_trim(&number);
	if (walk->mode == CANONICAL_JCS && !canonical_number_is_jcs(&number))
		report_not_jcs(&number);
	canonical_number(walk->sink, &number);

	if (digits != short_digits)
		pfree(digits);
}

/* The value of "entry", whose data are at "offset" from "base". */
static void
write_entry(CanonicalWalk *walk, JEntry entry, char *base, uint32 offset,
			uint32 len)
{
	CanonicalSink *sink = walk->sink;

	switch (entry & JENTRY_TYPEMASK)
	{
		case JENTRY_ISSTRING:
			write_string(sink, &walk->source, base + offset, len);
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

/* Make room for "n" members more. */
static void
reserve_members(CanonicalWalk *walk, size_t n)
{
	size_t		needed = walk->nmembers + n;
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

/* Put members in order. */
static void
sort_members(CanonicalMember *members, size_t n)
{
	size_t		space = canonical_sort_space(n) * sizeof(CanonicalMember);
	CanonicalMember *scratch = NULL;

	if (space > 0)
		scratch = MemoryContextAllocHuge(CurrentMemoryContext, space);
	canonical_sort_members(members, n, scratch, check_interrupts, NULL);
	if (scratch != NULL)
		pfree(scratch);
}

/* Names as UTF-8.  NAME_IS_COPY tells those that have to be freed. */
static void
convert_names(CanonicalWalk *walk, CanonicalMember *members, uint32 n)
{
	size_t		utf8_len;
	uint32		i;

	for (i = 0; i < n; i++)
	{
		const char *name = members[i].name;

		members[i].name = utf8_from_database_checked(&walk->source, name,
													 members[i].name_len, &utf8_len);
		members[i].name_len = (uint32_t) utf8_len;
		if (members[i].name != name)
			members[i].entry |= NAME_IS_COPY;
	}
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
	uint32		offset = 0;
	CanonicalMember *member;
	uint32		i;

	reserve_members(walk, n);
	member = walk->members + first;
	for (i = 0; i < n; i++)
	{
		JEntry		entry = object->children[i];

		member[i].name = base + offset;
		member[i].name_len = entry_length(entry, offset);
		member[i].entry = i;
		JBE_ADVANCE_OFFSET(offset, entry);
	}
	for (i = 0; i < n; i++)
	{
		member[i].value = offset;
		JBE_ADVANCE_OFFSET(offset, values[i]);
	}
	if (!walk->source.is_utf8)
		convert_names(walk, member, n);
	walk->nmembers += n;
	sort_members(member, n);

	canonical_char(walk->sink, '{');
	for (i = 0; i < n; i++)
	{
		JEntry		entry;

		/* values move the array */
		member = &walk->members[first + i];
		entry = values[member->entry & ~NAME_IS_COPY];
		if (i + CANONICAL_FETCH_AHEAD < n)
			CANONICAL_FETCH(member[CANONICAL_FETCH_AHEAD].name);
		if (i > 0)
			canonical_char(walk->sink, ',');
		canonical_string(walk->sink, member->name, member->name_len);
		canonical_char(walk->sink, ':');
		if ((member->entry & NAME_IS_COPY) != 0)
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
	utf8_source_init(&walk.source);
	walk.members = walk.small_members;
	walk.nmembers = 0;
	walk.members_space = SMALL_MEMBERS;
	write_container(&walk, &unconstify(Jsonb *, value)->root);
	if (walk.members != walk.small_members)
		pfree(walk.members);
}
