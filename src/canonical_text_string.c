/*-------------------------------------------------------------------------
 *
 * canonical_text_string.c
 *	  Strings of JSON text: checked, then written canonically.
 *
 *-------------------------------------------------------------------------
 */
#include "canonical_text_reader.h"

/* Bytes are looked at eight at once. */
#define ONES UINT64_C(0x0101010101010101)
#define TOPS UINT64_C(0x8080808080808080)

/*
 * The top bit of each byte that equals "c".  Bytes above one that is found may
 * be marked without cause.
 */
static inline uint64_t
mark_equal(uint64_t eight, char c)
{
	uint64_t	differs = eight ^ ONES * (unsigned char) c;

	return (differs - ONES) & ~differs & TOPS;
}

/* The top bit of each byte less than 0x20, with the same caveat. */
static inline uint64_t
mark_control(uint64_t eight)
{
	return (eight - ONES * 0x20) & ~eight & TOPS;
}

/* Bytes before the first one that is marked. */
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BYTES_BEFORE_MARK(marks) (__builtin_ctzll(marks) >> 3)
#else
#define BYTES_BEFORE_MARK(marks) 0
#endif

/* The first byte that a check of a string has to look at. */
static inline const char *
plain_end(const char *at, const char *end)
{
	uint64_t	eight;
	uint64_t	marks;

	for (; end - at >= (ptrdiff_t) sizeof(eight); at += sizeof(eight))
	{
		memcpy(&eight, at, sizeof(eight));
		marks = mark_equal(eight, '"') | mark_equal(eight, '\\') |
			mark_control(eight) | (eight & TOPS);
		if (marks != 0)
		{
			at += BYTES_BEFORE_MARK(marks);
			break;
		}
	}
	while (at < end && (unsigned char) *at >= 0x20 && *at != '"' &&
		   *at != '\\' && (*at & 0x80) == 0)
		at++;
	return at;
}

/* The next quotation mark or backslash in a valid string. */
static inline const char *
quote_or_backslash(const char *at, const char *end)
{
	uint64_t	eight;
	uint64_t	marks;

	for (; end - at >= (ptrdiff_t) sizeof(eight); at += sizeof(eight))
	{
		memcpy(&eight, at, sizeof(eight));
		marks = mark_equal(eight, '"') | mark_equal(eight, '\\');
		if (marks != 0)
		{
			at += BYTES_BEFORE_MARK(marks);
			break;
		}
	}
	while (*at != '"' && *at != '\\')
		at++;
	return at;
}

/* Length of the valid UTF-8 sequence at "at", which is not ASCII; zero: none. */
static size_t
utf8_length(const char *at, const char *end)
{
	const unsigned char *s = (const unsigned char *) at;
	size_t		left = (size_t) (end - at);
	unsigned char low = 0x80;
	unsigned char high = 0xBF;
	size_t		len = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
	size_t		i;

	if (s[0] < 0xC2 || s[0] > 0xF4 || left < len)
		return 0;
	if (s[0] == 0xE0)
		low = 0xA0;				/* less fits into two bytes */
	else if (s[0] == 0xED)
		high = 0x9F;			/* more is a surrogate */
	else if (s[0] == 0xF0)
		low = 0x90;				/* less fits into three bytes */
	else if (s[0] == 0xF4)
		high = 0x8F;			/* more is beyond U+10FFFF */
	if (s[1] < low || s[1] > high)
		return 0;
	for (i = 2; i < len; i++)
	{
		if ((s[i] & 0xC0) != 0x80)
			return 0;
	}
	return len;
}

static inline int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* The UTF-16 code unit that the four digits at "at" name; negative: no digits. */
static int
read_unit(const char *at, const char *end)
{
	int			unit = 0;
	int			i;

	if (end - at < 4)
		return -1;
	for (i = 0; i < 4; i++)
	{
		int			digit = hex_value(at[i]);

		if (digit < 0)
			return -1;
		unit = unit << 4 | digit;
	}
	return unit;
}

static inline bool
is_high_surrogate(int unit)
{
	return unit >= 0xD800 && unit <= 0xDBFF;
}

static inline bool
is_low_surrogate(int unit)
{
	return unit >= 0xDC00 && unit <= 0xDFFF;
}

/* Check the escape at the backslash "at". */
static const char *
check_escape(CanonicalReader *reader, const char *at)
{
	const char *end = reader->end;
	int			unit;

	if (end - at < 2)
		return canonical_refuse_at(reader, CANONICAL_TEXT_ENDS_EARLY, end, 0);
	if (at[1] != 'u')
	{
		/* strchr would find the zero byte as well */
		if (at[1] == '\0' || strchr("\"\\/bfnrt", at[1]) == NULL)
			return canonical_refuse_at(reader, CANONICAL_TEXT_ESCAPE, at, 2);
		return at + 2;
	}
	unit = read_unit(at + 2, end);
	if (unit < 0)
		return canonical_refuse_at(reader, CANONICAL_TEXT_ESCAPE, at, 2);
	if (unit == 0)
		return canonical_refuse_at(reader, CANONICAL_TEXT_NUL, at, 6);
	if (is_low_surrogate(unit))
		return canonical_refuse_at(reader, CANONICAL_TEXT_SURROGATE, at, 6);
	if (!is_high_surrogate(unit))
		return at + 6;
	if (end - at < 12 || at[6] != '\\' || at[7] != 'u' ||
		!is_low_surrogate(read_unit(at + 8, end)))
		return canonical_refuse_at(reader, CANONICAL_TEXT_SURROGATE, at, 6);
	return at + 12;
}

/* Check a string, from its quotation mark on. */
const char *
canonical_check_string(CanonicalReader *reader, const char *at)
{
	const char *end = reader->end;

	at++;
	while ((at = plain_end(at, end)) < end && *at != '"')
	{
		if (*at == '\\')
		{
			at = check_escape(reader, at);
			if (at == NULL)
				return NULL;
		}
		else if ((unsigned char) *at < 0x20)
			return canonical_refuse_at(reader, CANONICAL_TEXT_CONTROL, at, 1);
		else
		{
			do
			{
				size_t		len = utf8_length(at, end);

				if (len == 0)
					return canonical_refuse_at(reader, CANONICAL_TEXT_UTF8, at, 1);
				at += len;
			} while (at < end && (*at & 0x80) != 0);
		}
		canonical_tick(reader, at);
	}
	if (at >= end)
		return canonical_refuse_at(reader, CANONICAL_TEXT_ENDS_EARLY, end, 0);
	return at + 1;
}

/*
 * Step over the valid string that begins at "at".  Sets "*escaped" when it has
 * an escape.
 */
const char *
canonical_skip_string(const char *at, const char *end, bool *escaped)
{
	at = quote_or_backslash(at + 1, end);
	while (*at == '\\')
	{
		*escaped = true;
		at = quote_or_backslash(at + 2, end);
	}
	return at + 1;
}

/* A code point as UTF-8.  Gives its length. */
static size_t
put_code(uint32_t code, char utf8[4])
{
	if (code < 0x80)
	{
		utf8[0] = (char) code;
		return 1;
	}
	if (code < 0x800)
	{
		utf8[0] = (char) (0xC0 | code >> 6);
		utf8[1] = (char) (0x80 | (code & 0x3F));
		return 2;
	}
	if (code < 0x10000)
	{
		utf8[0] = (char) (0xE0 | code >> 12);
		utf8[1] = (char) (0x80 | (code >> 6 & 0x3F));
		utf8[2] = (char) (0x80 | (code & 0x3F));
		return 3;
	}
	utf8[0] = (char) (0xF0 | code >> 18);
	utf8[1] = (char) (0x80 | (code >> 12 & 0x3F));
	utf8[2] = (char) (0x80 | (code >> 6 & 0x3F));
	utf8[3] = (char) (0x80 | (code & 0x3F));
	return 4;
}

/* What the valid escape at the backslash "at" stands for, as UTF-8. */
static const char *
read_escape(const char *at, char utf8[4], size_t *len)
{
	static const char letters[] = "bfnrt";
	static const char controls[] = "\b\f\n\r\t";
	uint32_t	code;

	if (at[1] != 'u')
	{
		const char *letter = strchr(letters, at[1]);

		utf8[0] = letter != NULL ? controls[letter - letters] : at[1];
		*len = 1;
		return at + 2;
	}
	code = (uint32_t) read_unit(at + 2, at + 6);
	at += 6;
	if (is_high_surrogate((int) code))
	{
		code = 0x10000 + ((code - 0xD800) << 10) +
			((uint32_t) read_unit(at + 2, at + 6) - 0xDC00);
		at += 6;
	}
	*len = put_code(code, utf8);
	return at;
}

/*
 * Write the valid string that begins at "at", with the shortest escapes.  What
 * needs an escape has one, so what is not an escape stays as it is.
 */
const char *
canonical_write_string(CanonicalReader *reader, const char *at)
{
	CanonicalSink *sink = reader->sink;
	const char *plain = at;
	char		utf8[4];
	size_t		len;

	at = quote_or_backslash(at + 1, reader->end);
	while (*at == '\\')
	{
		canonical_bytes(sink, plain, (size_t) (at - plain));
		at = read_escape(at, utf8, &len);
		if (len == 1 && ((unsigned char) utf8[0] < 0x20 ||
						 utf8[0] == '"' || utf8[0] == '\\'))
			canonical_char_escaped(sink, (unsigned char) utf8[0]);
		else
			canonical_bytes(sink, utf8, len);
		plain = at;
		at = quote_or_backslash(at, reader->end);
	}
	at++;
	canonical_bytes(sink, plain, (size_t) (at - plain));
	return at;
}

/*
 * What the valid string "raw", without its quotation marks, stands for: into
 * "to", which has room for "len" bytes.  Gives how many it took.
 */
size_t
canonical_unescape(const char *raw, size_t len, char *to)
{
	const char *end = raw + len;
	char	   *begin = to;
	char		utf8[4];
	size_t		n;

	while (raw < end)
	{
		if (*raw != '\\')
		{
			*to++ = *raw++;
			continue;
		}
		raw = read_escape(raw, utf8, &n);
		memcpy(to, utf8, n);
		to += n;
	}
	return (size_t) (to - begin);
}
