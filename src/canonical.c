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
 * canonical_bytes for more than what is free in the buffer.  Long text goes
 * through the buffer too, so that "write" is called often enough to look for
 * interrupts there.
 */
void
canonical_long_bytes(CanonicalSink *sink, const char *data, size_t len)
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

/*
 * Copy the bytes from the beginning that stand for themselves, and give how
 * many those are.  The last bytes are taken together with some before them,
 * once more.
 */
static size_t
copy_plain(char *to, const char *utf8, size_t len)
{
	size_t		at;
	uint64_t	eight;

	for (at = 0; len - at >= sizeof(eight); at += sizeof(eight))
	{
		memcpy(&eight, utf8 + at, sizeof(eight));
		if (any_needs_escape(eight))
			break;
		memcpy(to + at, &eight, sizeof(eight));
	}
	if (len >= sizeof(eight) && len - at < sizeof(eight))
	{
		memcpy(&eight, utf8 + len - sizeof(eight), sizeof(eight));
		if (!any_needs_escape(eight))
		{
			memcpy(to + len - sizeof(eight), &eight, sizeof(eight));
			return len;
		}
	}
	else if (len < sizeof(eight) && len >= sizeof(uint32_t))
	{
		uint32_t	first;
		uint32_t	last;

		memcpy(&first, utf8, sizeof(first));
		memcpy(&last, utf8 + len - sizeof(last), sizeof(last));
		if (!any_needs_escape((uint64_t) first << 32 | last))
		{
			memcpy(to, &first, sizeof(first));
			memcpy(to + len - sizeof(last), &last, sizeof(last));
			return len;
		}
	}
	for (; at < len && !needs_escape((unsigned char) utf8[at]); at++)
		to[at] = utf8[at];
	return at;
}

/*
 * A string or a member's name, with its quotes.  "utf8" must be valid UTF-8;
 * it is neither normalised nor otherwise changed, only escaped.
 */
void
canonical_string(CanonicalSink *sink, const char *utf8, size_t len)
{
	canonical_char(sink, '"');
	for (;;)
	{
		size_t		space = CANONICAL_BUFFER_SIZE - sink->used;
		size_t		piece = len < space ? len : space;
		size_t		plain = copy_plain(sink->buffer + sink->used, utf8, piece);

		sink->used += plain;
		utf8 += plain;
		len -= plain;
		if (len == 0)
			break;
		if (plain == piece)
			canonical_flush(sink);
		else
		{
			canonical_char_escaped(sink, (unsigned char) *utf8);
			utf8++;
			len--;
		}
	}
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
