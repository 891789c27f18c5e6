/*-------------------------------------------------------------------------
 *
 * canonical.c
 *	  Canonical JSON text, piece by piece: strings, exact numbers, name order.
 *
 * Strings and the order of names follow RFC 8785, sections 3.2.2.2 and 3.2.3.
 * Numbers are laid out as section 3.2.2.3 (ECMAScript) lays them out, but from
 * the decimal digits themselves and never through a double: two amounts that
 * differ in the last of forty digits must not become one text.  Where RFC
 * 8785's text denotes the same decimal, the two are byte for byte equal.
 *
 *-------------------------------------------------------------------------
 */
#include "canonical.h"

#include <stdio.h>
#include <string.h>

/* ECMAScript writes a number without exponent while -6 < point <= 21. */
#define PLAIN_POINT_ABOVE (-6)
#define PLAIN_POINT_MAX 21

/*
 * The normal doubles, as digits behind the point and the place of the point,
 * and the integers that are all doubles: up to 2^53.
 */
#define DOUBLE_DIGITS 15
#define DOUBLE_MIN_DIGITS "22250738585072014"
#define DOUBLE_MIN_POINT (-307)
#define DOUBLE_MAX_DIGITS "17976931348623157"
#define DOUBLE_MAX_POINT 309
#define INTEGER_MAX_DIGITS "9007199254740992"
#define INTEGER_MAX_POINT 16

/* Up to here members are sorted by insertion, without scratch space. */
#define INSERTION_MAX 16

/* Prepare a sink; "write" is called with "ctx". */
void
canonical_init(CanonicalSink *sink,
			   void (*write) (void *ctx, const char *data, size_t len),
			   void *ctx)
{
	sink->write = write;
	sink->ctx = ctx;
	sink->used = 0;
}

/* Hand on what the buffer holds; the last call for a value. */
void
canonical_flush(CanonicalSink *sink)
{
	size_t		len = sink->used;

	sink->used = 0;
	if (len > 0)
		sink->write(sink->ctx, sink->buffer, len);
}

/*
 * Bytes that are canonical already.  Long ones go through the buffer too, so
 * that "write" is called often enough to look for interrupts there.
 */
void
canonical_bytes(CanonicalSink *sink, const char *data, size_t len)
{
	while (len > CANONICAL_BUFFER_SIZE - sink->used)
	{
		size_t		part = CANONICAL_BUFFER_SIZE - sink->used;

		memcpy(sink->buffer + sink->used, data, part);
		sink->used += part;
		data += part;
		len -= part;
		canonical_flush(sink);
	}
	memcpy(sink->buffer + sink->used, data, len);
	sink->used += len;
}

/*
 * The shortest escape of a character that can't stand for itself: a control
 * character, a quotation mark or a backslash.
 */
void
canonical_char_escaped(CanonicalSink *sink, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	char		escape[6] = {'\\', 'u', '0', '0', 0, 0};

	switch (c)
	{
		case '"':
		case '\\':
			escape[1] = (char) c;
			break;
		case '\b':
			escape[1] = 'b';
			break;
		case '\t':
			escape[1] = 't';
			break;
		case '\n':
			escape[1] = 'n';
			break;
		case '\f':
			escape[1] = 'f';
			break;
		case '\r':
			escape[1] = 'r';
			break;
		default:
			escape[4] = hex[c >> 4];
			escape[5] = hex[c & 0x0f];
			break;
	}
	canonical_bytes(sink, escape, escape[1] == 'u' ? 6 : 2);
}

static inline bool
needs_escape(unsigned char c)
{
	return c < 0x20 || c == '"' || c == '\\';
}

/*
 * needs_escape for any of eight bytes at once.  In each byte below 0x80, a
 * subtraction sets the top bit when the byte is less than 0x20, or when it
 * equals the character it was XORed with.  A borrow reaches only bytes above
 * one that is found anyway.
 */
static inline bool
any_needs_escape(uint64_t eight)
{
	const uint64_t ones = UINT64_C(0x0101010101010101);
	uint64_t	control = eight - ones * 0x20;
	uint64_t	quote = (eight ^ ones * '"') - ones;
	uint64_t	backslash = (eight ^ ones * '\\') - ones;

	return ((control | quote | backslash) & ~eight & ones * 0x80) != 0;
}

/* How many bytes from the beginning stand for themselves. */
static size_t
plain_length(const char *utf8, size_t len)
{
	size_t		at;
	uint64_t	eight;

	for (at = 0; len - at >= sizeof(eight); at += sizeof(eight))
	{
		memcpy(&eight, utf8 + at, sizeof(eight));
		if (any_needs_escape(eight))
			break;
	}
	while (at < len && !needs_escape((unsigned char) utf8[at]))
		at++;
	return at;
}

/*
 * A string or a member's name, with its quotes.  "utf8" must be valid UTF-8;
 * it is neither normalised nor otherwise changed, only escaped.
 */
void
canonical_string(CanonicalSink *sink, const char *utf8, size_t len)
{
	size_t		plain;

	canonical_char(sink, '"');
	while ((plain = plain_length(utf8, len)) < len)
	{
		canonical_bytes(sink, utf8, plain);
		canonical_char_escaped(sink, (unsigned char) utf8[plain]);
		utf8 += plain + 1;
		len -= plain + 1;
	}
	canonical_bytes(sink, utf8, len);
	canonical_char(sink, '"');
}

/* A run of zeros; never longer than PLAIN_POINT_MAX. */
static void
write_zeros(CanonicalSink *sink, int count)
{
	while (count-- > 0)
		canonical_char(sink, '0');
}

/* d, d.ddd, then e+x or e-x */
static void
write_scientific(CanonicalSink *sink, const char *digits, size_t ndigits,
				 int exponent)
{
	char		suffix[16];
	int			len = snprintf(suffix, sizeof(suffix), "e%+d", exponent);

	canonical_char(sink, digits[0]);
	if (ndigits > 1)
	{
		canonical_char(sink, '.');
		canonical_bytes(sink, digits + 1, ndigits - 1);
	}
	canonical_bytes(sink, suffix, (size_t) len);
}

/* ddd, ddd000, dd.ddd or 0.000ddd */
static void
write_plain(CanonicalSink *sink, const char *digits, size_t ndigits, int point)
{
	if (point <= 0)
	{
		canonical_bytes(sink, "0.", 2);
		write_zeros(sink, -point);
		canonical_bytes(sink, digits, ndigits);
	}
	else if (ndigits <= (size_t) point)
	{
		canonical_bytes(sink, digits, ndigits);
		write_zeros(sink, point - (int) ndigits);
	}
	else
	{
		canonical_bytes(sink, digits, (size_t) point);
		canonical_char(sink, '.');
		canonical_bytes(sink, digits + point, ndigits - (size_t) point);
	}
}

/* Strip the zeros at either end, which are not significant. */
void
canonical_number_trim(CanonicalNumber *number)
{
	while (number->ndigits > 0 && number->digits[0] == '0')
	{
		number->digits++;
		number->ndigits--;
		number->point--;
	}
	while (number->ndigits > 0 && number->digits[number->ndigits - 1] == '0')
		number->ndigits--;
}

/*
 * Compare the magnitude of a trimmed number, which is not zero, with 0.LIMIT x
 * 10^point: negative, zero or positive.
 */
static int
compare_magnitude(const CanonicalNumber *number, const char *limit, int point)
{
	size_t		nlimit = strlen(limit);
	size_t		common = number->ndigits < nlimit ? number->ndigits : nlimit;
	int			order;

	if (number->point != point)
		return number->point < point ? -1 : 1;
	order = memcmp(number->digits, limit, common);
	if (order != 0)
		return order;
	return number->ndigits < nlimit ? -1 : number->ndigits > nlimit;
}

/*
 * Does RFC 8785 surely write a trimmed number as canonical_number does?  It
 * does for zero, for up to 15 significant digits within the range of normal
 * doubles, and for integers up to 2^53.  docs/design.md says why.
 */
bool
canonical_number_is_jcs(const CanonicalNumber *number)
{
	if (number->ndigits == 0)
		return true;
	if (number->ndigits <= DOUBLE_DIGITS)
		return compare_magnitude(number, DOUBLE_MIN_DIGITS, DOUBLE_MIN_POINT) >= 0 &&
			compare_magnitude(number, DOUBLE_MAX_DIGITS, DOUBLE_MAX_POINT) <= 0;
	return number->point > 0 && number->ndigits <= (size_t) number->point &&
		compare_magnitude(number, INTEGER_MAX_DIGITS, INTEGER_MAX_POINT) <= 0;
}

/*
 * A trimmed number, exactly.  Zero has no sign.  The text is never longer than
 * the digits plus 21 zeros or a short exponent.  The caller keeps the place of
 * every digit well within an int.
 */
void
canonical_number(CanonicalSink *sink, const CanonicalNumber *number)
{
	const char *digits = number->digits;
	size_t		ndigits = number->ndigits;
	int			point = number->point;

	if (ndigits == 0)
	{
		canonical_char(sink, '0');
		return;
	}
	if (number->negative)
		canonical_char(sink, '-');
	if (point > PLAIN_POINT_ABOVE && point <= PLAIN_POINT_MAX)
		write_plain(sink, digits, ndigits, point);
	else
		write_scientific(sink, digits, ndigits, point - 1);
}

/*
 * The place of a UTF-8 byte in UTF-16 order.  Code points above U+FFFF (lead
 * bytes F0 to F4) are surrogates there, so they come before U+E000 to U+FFFF
 * (lead bytes EE and EF).  All else orders alike in both encodings.
 */
static inline int
utf16_rank(unsigned char byte)
{
	return byte == 0xEE || byte == 0xEF ? byte + 0x10 : byte;
}

/*
 * Compare two names, valid UTF-8, by their UTF-16 code units: negative, zero or
 * positive.  Where two valid texts first differ, both bytes lead a character
 * or both continue one with the same lead, so that byte alone decides.
 */
int
canonical_compare_names(const char *a, size_t alen, const char *b, size_t blen)
{
	size_t		common = alen < blen ? alen : blen;
	size_t		at = 0;
	uint64_t	eight_a;
	uint64_t	eight_b;

	for (; common - at >= sizeof(eight_a); at += sizeof(eight_a))
	{
		memcpy(&eight_a, a + at, sizeof(eight_a));
		memcpy(&eight_b, b + at, sizeof(eight_b));
		if (eight_a != eight_b)
			break;
	}
	for (; at < common; at++)
	{
		if (a[at] != b[at])
			return utf16_rank((unsigned char) a[at]) -
				utf16_rank((unsigned char) b[at]);
	}
	return alen < blen ? -1 : alen > blen;
}

/*
 * The first eight bytes of a name, so that the order of these numbers is the
 * order of the names, but for names with one prefix.  Shorter names end in
 * zeros; no name has a zero byte.
 */
static inline uint64_t
name_prefix(const char *name, size_t len)
{
	uint64_t	prefix = 0;
	size_t		n = len < sizeof(prefix) ? len : sizeof(prefix);
	size_t		at;

	for (at = 0; at < n; at++)
		prefix = prefix << 8 | (uint64_t) utf16_rank((unsigned char) name[at]);
	return n == 0 ? 0 : prefix << 8 * (sizeof(prefix) - n);
}

static inline bool
comes_after(const CanonicalMember *a, const CanonicalMember *b)
{
	const size_t skip = sizeof(a->prefix);

	if (a->prefix != b->prefix)
		return a->prefix > b->prefix;
	/* Names as short as the prefix are equal now. */
	if (a->name_len <= skip || b->name_len <= skip)
		return a->name_len > b->name_len;
	return canonical_compare_names(a->name + skip, a->name_len - skip,
								   b->name + skip, b->name_len - skip) > 0;
}

static void
insertion_sort(CanonicalMember *members, size_t nmembers)
{
	size_t		i;
	size_t		to;

	for (i = 1; i < nmembers; i++)
	{
		CanonicalMember member = members[i];

		for (to = i; to > 0 && comes_after(&members[to - 1], &member); to--)
			members[to] = members[to - 1];
		members[to] = member;
	}
}

/* Merge the sorted members [0, middle) and [middle, end), by way of scratch. */
static void
merge(CanonicalMember *members, size_t middle, size_t end,
	  CanonicalMember *scratch)
{
	size_t		left = 0;
	size_t		right = middle;
	size_t		to = 0;

	if (!comes_after(&members[middle - 1], &members[middle]))
		return;
	memcpy(scratch, members, middle * sizeof(*members));
	while (left < middle && right < end)
	{
		if (comes_after(&scratch[left], &members[right]))
			members[to++] = members[right++];
		else
			members[to++] = scratch[left++];
	}
	memcpy(members + to, scratch + left, (middle - left) * sizeof(*members));
}

/* How many members' space canonical_sort_members needs, theirs included. */
size_t
canonical_sort_space(size_t nmembers)
{
	return nmembers <= INSERTION_MAX ? nmembers : 2 * nmembers;
}

/*
 * Sort the members of an object by their names.  The order of equal ones is
 * kept.  Never slower than n log n comparisons, whatever names someone sends.
 * "tick" is called now and then, and may leave by a jump.
 */
void
canonical_sort_members(CanonicalMember *members, size_t nmembers,
					   void (*tick) (void *ctx), void *ctx)
{
	size_t		run;
	size_t		at;

	for (at = 0; at < nmembers; at++)
		members[at].prefix = name_prefix(members[at].name,
										 members[at].name_len);
	for (at = 0; at < nmembers; at += INSERTION_MAX)
		insertion_sort(members + at, nmembers - at < INSERTION_MAX ?
					   nmembers - at : INSERTION_MAX);
	for (run = INSERTION_MAX; run < nmembers; run *= 2)
	{
		for (at = 0; nmembers - at > run; at += 2 * run)
		{
			size_t		end = nmembers - at < 2 * run ? nmembers - at : 2 * run;

			tick(ctx);
			merge(members + at, run, end, members + nmembers);
			if (end < 2 * run)
				break;
		}
	}
}
