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

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ECMAScript writes a number without exponent while -6 < point <= 21. */
#define PLAIN_POINT_ABOVE (-6)
#define PLAIN_POINT_MAX 21

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

/* The shortest escape of a character that can't stand for itself. */
static void
write_escape(CanonicalSink *sink, unsigned char c)
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
		write_escape(sink, (unsigned char) utf8[plain]);
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

/*
 * The decimal 0.DIGITS x 10^point, exactly: "digits" are "ndigits" characters
 * 0 to 9 with the decimal point after the first "point" of them (which may lie
 * before or behind all of them).  Zeros at either end are not significant, and
 * zero has no sign.  The text is never longer than the digits plus 21 zeros or
 * a short exponent.  The caller keeps the position of every digit well within
 * an int.
 */
void
canonical_number(CanonicalSink *sink, bool negative,
				 const char *digits, size_t ndigits, int point)
{
	while (ndigits > 0 && digits[0] == '0')
	{
		digits++;
		ndigits--;
		point--;
	}
	while (ndigits > 0 && digits[ndigits - 1] == '0')
		ndigits--;

	if (ndigits == 0)
	{
		canonical_char(sink, '0');
		return;
	}
	if (negative)
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
static int
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
	size_t		at;

	for (at = 0; at < common; at++)
	{
		if (a[at] != b[at])
			return utf16_rank((unsigned char) a[at]) -
				utf16_rank((unsigned char) b[at]);
	}
	return alen < blen ? -1 : alen > blen;
}
