/*-------------------------------------------------------------------------
 *
 * canonical_text.c
 *	  Canonical form of JSON text, read strictly.
 *
 * Two passes.  The first checks all of the text but for repeated names.  The
 * second writes: at an object it collects where its members are, puts them in
 * order and writes one after another, their values by recursion.  So memory
 * holds the members of the objects that are open, never the text's values.
 *
 * To collect members is to step over their values, and a value at depth 1,000
 * would be stepped over 1,000 times.  So where containers end is remembered:
 * exactly for all of a stretch of text, the window; elsewhere only for the few
 * that are longer than a window.  A short container outside of the window is
 * read over once, and becomes the window when something inside of it has to be
 * stepped over.  That makes the cost linear in the length of the text.
 *
 *-------------------------------------------------------------------------
 */
#include "canonical_text.h"

#include <string.h>

/* Length of a window.  Containers that are longer are remembered one by one. */
#define WINDOW_SIZE 262144

/*
 * Only the ends of containers that are values of members are asked for, and
 * two of those are at least four bytes apart: {"":{"":
 */
#define WINDOW_GRAIN 4

/* What fits without allocating. */
#define SMALL_WINDOW 1024
#define SMALL_MEMBERS 32
#define SHORT_NUMBER_DIGITS 128

/* Ask for interrupts whenever this much was read. */
#define TICK_EVERY 65536

/* Exponents from here on are too large for any number. */
#define EXPONENT_LIMIT 1073741823

/* A container longer than a window: from its bracket to behind the other. */
typedef struct LongContainer
{
	uint32_t	start;
	uint32_t	end;
} LongContainer;

typedef struct Reader
{
	const char *text;
	const char *end;
	const char *next_tick;
	CanonicalSink *sink;
	CanonicalMode mode;
	const CanonicalTextHost *host;
	CanonicalTextError *error;

	/* the window: for each grain where the container in it ends */
	uint32_t	window_start;
	uint32_t	window_end;
	uint32_t   *ends;

	/* by where they end, then sorted by where they begin */
	LongContainer *longs;
	size_t		nlongs;
	size_t		longs_space;

	/* members of the open objects, outer ones first */
	CanonicalMember *members;
	size_t		nmembers;
	size_t		members_space;

	/* brackets of the open containers, while reading over them */
	uint32_t	open[CANONICAL_MAX_DEPTH];

	uint32_t	small_window[SMALL_WINDOW / WINDOW_GRAIN];
	CanonicalMember small_members[SMALL_MEMBERS];
} Reader;

/* A number as it is written. */
typedef struct NumberText
{
	const char *start;
	const char *end;
	bool		negative;
	const char *whole;			/* digits before the decimal point */
	size_t		nwhole;
	const char *fraction;		/* digits behind it */
	size_t		nfraction;
	bool		has_exponent;
	int			exponent;
} NumberText;

static const char *write_value(Reader *reader, const char *at);

/* Note what is wrong; the caller returns what says so. */
static bool
refuse(Reader *reader, CanonicalTextFault fault, const char *at, size_t len)
{
	if (at >= reader->end && fault != CANONICAL_TEXT_TOO_LONG)
	{
		fault = CANONICAL_TEXT_ENDS_EARLY;
		len = 0;
	}
	reader->error->fault = fault;
	reader->error->at = (size_t) (at - reader->text);
	reader->error->len = len;
	return false;
}

static inline void
tick_if_due(Reader *reader, const char *at)
{
	if (at >= reader->next_tick)
	{
		reader->host->tick(reader->host->ctx);
		reader->next_tick = reader->end - at > TICK_EVERY ?
			at + TICK_EVERY : reader->end;
	}
}

/*
 * Bytes, eight at once
 */

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

/* Behind the white space at "at". */
static inline const char *
skip_space(const char *at, const char *end)
{
	while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
		at++;
	return at;
}

/* The first byte that has to be looked at in the checking of a string. */
static inline const char *
plain_end(const char *at, const char *end)
{
	uint64_t	eight;

	for (; end - at >= (ptrdiff_t) sizeof(eight); at += sizeof(eight))
	{
		memcpy(&eight, at, sizeof(eight));
		if ((mark_equal(eight, '"') | mark_equal(eight, '\\') |
			 mark_control(eight) | (eight & TOPS)) != 0)
			break;
	}
	while (at < end && (unsigned char) *at >= 0x20 && *at != '"' &&
		   *at != '\\' && (*at & 0x80) == 0)
		at++;
	return at;
}

/* The next quotation mark or backslash in a valid string. */
static inline const char *
quote_or_backslash(const char *at)
{
	while (*at != '"' && *at != '\\')
		at++;
	return at;
}

/*
 * Strings
 */

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
		low = 0xA0;
	else if (s[0] == 0xED)
		high = 0x9F;
	else if (s[0] == 0xF0)
		low = 0x90;
	else if (s[0] == 0xF4)
		high = 0x8F;
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

/* Check the escape at the backslash "at".  Gives what follows it, or NULL. */
static const char *
check_escape(Reader *reader, const char *at)
{
	const char *end = reader->end;
	int			unit;

	if (end - at < 2)
		return refuse(reader, CANONICAL_TEXT_ESCAPE, end, 0), NULL;
	if (at[1] != 'u')
	{
		/* strchr would find the zero byte as well */
		if (at[1] == '\0' || strchr("\"\\/bfnrt", at[1]) == NULL)
			return refuse(reader, CANONICAL_TEXT_ESCAPE, at, 2), NULL;
		return at + 2;
	}
	unit = read_unit(at + 2, end);
	if (unit < 0)
		return refuse(reader, CANONICAL_TEXT_ESCAPE, at, 2), NULL;
	if (unit == 0)
		return refuse(reader, CANONICAL_TEXT_NUL, at, 6), NULL;
	if (is_low_surrogate(unit))
		return refuse(reader, CANONICAL_TEXT_SURROGATE, at, 6), NULL;
	if (!is_high_surrogate(unit))
		return at + 6;
	if (end - at < 12 || at[6] != '\\' || at[7] != 'u' ||
		!is_low_surrogate(read_unit(at + 8, end)))
		return refuse(reader, CANONICAL_TEXT_SURROGATE, at, 6), NULL;
	return at + 12;
}

/* Check a string from its quotation mark on.  Gives what follows it, or NULL. */
static const char *
check_string(Reader *reader, const char *at)
{
	const char *end = reader->end;
	size_t		len;

	at++;
	for (;;)
	{
		at = plain_end(at, end);
		if (at >= end)
			return refuse(reader, CANONICAL_TEXT_ENDS_EARLY, at, 0), NULL;
		if (*at == '"')
			return at + 1;
		if (*at == '\\')
		{
			at = check_escape(reader, at);
			if (at == NULL)
				return NULL;
		}
		else if ((unsigned char) *at < 0x20)
			return refuse(reader, CANONICAL_TEXT_CONTROL, at, 1), NULL;
		else
		{
			do
			{
				len = utf8_length(at, end);
				if (len == 0)
					return refuse(reader, CANONICAL_TEXT_UTF8, at, 1), NULL;
				at += len;
			} while (at < end && (*at & 0x80) != 0);
		}
		tick_if_due(reader, at);
	}
}

/* Behind a valid string that begins at "at". */
static const char *
skip_string(const char *at, bool *escaped)
{
	at = quote_or_backslash(at + 1);
	while (*at == '\\')
	{
		*escaped = true;
		at = quote_or_backslash(at + 2);
	}
	return at + 1;
}

/*
 * What the valid escape at the backslash "at" stands for, as up to four bytes
 * of UTF-8.  Gives what follows the escape.
 */
static const char *
read_escape(const char *at, char utf8[4], size_t *len)
{
	static const char letters[] = "bfnrt";
	static const char controls[] = "\b\f\n\r\t";
	const char *letter;
	uint32_t	code;

	*len = 1;
	if (at[1] != 'u')
	{
		letter = strchr(letters, at[1]);
		utf8[0] = letter != NULL ? controls[letter - letters] : at[1];
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
	if (code < 0x80)
		utf8[0] = (char) code;
	else if (code < 0x800)
	{
		*len = 2;
		utf8[0] = (char) (0xC0 | code >> 6);
		utf8[1] = (char) (0x80 | (code & 0x3F));
	}
	else if (code < 0x10000)
	{
		*len = 3;
		utf8[0] = (char) (0xE0 | code >> 12);
		utf8[1] = (char) (0x80 | (code >> 6 & 0x3F));
		utf8[2] = (char) (0x80 | (code & 0x3F));
	}
	else
	{
		*len = 4;
		utf8[0] = (char) (0xF0 | code >> 18);
		utf8[1] = (char) (0x80 | (code >> 12 & 0x3F));
		utf8[2] = (char) (0x80 | (code >> 6 & 0x3F));
		utf8[3] = (char) (0x80 | (code & 0x3F));
	}
	return at;
}

/*
 * Write the valid string that begins at "at", with the shortest escapes.  All
 * that needs one is escaped already, in one way or another.
 */
static const char *
write_string(Reader *reader, const char *at)
{
	CanonicalSink *sink = reader->sink;
	const char *plain = at;
	char		utf8[4];
	size_t		len;

	at = quote_or_backslash(at + 1);
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
		at = quote_or_backslash(at);
	}
	at++;
	canonical_bytes(sink, plain, (size_t) (at - plain));
	return at;
}

/* What the valid string "raw" without its quotation marks stands for. */
static size_t
unescape(const char *raw, size_t len, char *to)
{
	const char *end = raw + len;
	const char *begin = to;
	size_t		step;

	while (raw < end)
	{
		if (*raw == '\\')
		{
			raw = read_escape(raw, to, &step);
			to += step;
		}
		else
			*to++ = *raw++;
	}
	return (size_t) (to - begin);
}

/*
 * Numbers
 */

static inline const char *
skip_digits(const char *at, const char *end)
{
	while (at < end && *at >= '0' && *at <= '9')
		at++;
	return at;
}

/* The exponent at "at", cut off where no number is that large. */
static const char *
scan_exponent(const char *at, const char *end, NumberText *number)
{
	bool		negative = false;
	const char *digits;

	if (at < end && (*at == '+' || *at == '-'))
		negative = *at++ == '-';
	digits = at;
	for (; at < end && *at >= '0' && *at <= '9'; at++)
	{
		if (number->exponent < EXPONENT_LIMIT / 10)
			number->exponent = number->exponent * 10 + (*at - '0');
		else
			number->exponent = EXPONENT_LIMIT;
	}
	if (negative)
		number->exponent = -number->exponent;
	number->has_exponent = true;
	return at > digits ? at : NULL;
}

/*
 * Take a number apart, which begins at "at" with a minus sign or a digit.  On
 * false "number->end" is where JSON's way of writing numbers was left.
 */
static bool
scan_number(const char *at, const char *end, NumberText *number)
{
	number->start = at;
	number->negative = *at == '-';
	if (number->negative)
		at++;
	number->whole = at;
	at = skip_digits(at, end);
	number->nwhole = (size_t) (at - number->whole);
	number->end = at;
	number->fraction = at;
	number->nfraction = 0;
	number->has_exponent = false;
	number->exponent = 0;
	if (number->nwhole == 0)
		return false;
	if (number->nwhole > 1 && number->whole[0] == '0')
	{
		number->end = number->whole + 1;
		return false;
	}
	if (at < end && *at == '.')
	{
		number->fraction = at + 1;
		at = skip_digits(at + 1, end);
		number->nfraction = (size_t) (at - number->fraction);
		number->end = at;
		if (number->nfraction == 0)
			return false;
	}
	if (at < end && (*at == 'e' || *at == 'E'))
	{
		const char *behind = scan_exponent(at + 1, end, number);

		if (behind == NULL)
		{
			number->end = at + 1;
			return false;
		}
		number->end = behind;
	}
	return true;
}

/*
 * Can jsonb hold the number?  Its digits behind the decimal point are counted
 * as written, zeros included; those before it from the first that is not zero.
 */
static bool
in_range(const NumberText *number)
{
	const char *digits = number->whole;
	size_t		ndigits = number->nwhole;
	long		point = (long) number->nwhole + number->exponent;
	long		fraction = (long) number->nfraction - number->exponent;
	size_t		at;

	if (number->exponent <= -EXPONENT_LIMIT || number->exponent >= EXPONENT_LIMIT ||
		fraction > CANONICAL_FRACTION_DIGITS_MAX)
		return false;
	if (point <= CANONICAL_WHOLE_DIGITS_MAX)
		return true;
	if (ndigits == 1 && digits[0] == '0')
	{
		digits = number->fraction;
		ndigits = number->nfraction;
		point--;
	}
	for (at = 0; at < ndigits && digits[at] == '0'; at++)
		point--;
	return at == ndigits || point <= CANONICAL_WHOLE_DIGITS_MAX;
}

/*
 * The number's digits in one piece, without zeros at the ends: in "space" when
 * they fit, else in a block of their own, which is "*block" then.
 */
static bool
gather_digits(Reader *reader, const NumberText *text, char *space, char **block,
			  CanonicalNumber *number)
{
	const char *whole = text->whole;
	size_t		nwhole = text->nwhole;
	const char *fraction = text->fraction;
	size_t		nfraction = text->nfraction;
	long		point = (long) nwhole + text->exponent;
	char	   *digits = space;

	while (nfraction > 0 && fraction[nfraction - 1] == '0')
		nfraction--;
	while (nfraction == 0 && nwhole > 0 && whole[nwhole - 1] == '0')
		nwhole--;
	while (nwhole > 0 && whole[0] == '0')
	{
		whole++;
		nwhole--;
		point--;
	}
	while (nwhole == 0 && nfraction > 0 && fraction[0] == '0')
	{
		fraction++;
		nfraction--;
		point--;
	}
	*block = NULL;
	if (nwhole + nfraction > SHORT_NUMBER_DIGITS)
	{
		digits = *block = reader->host->resize(reader->host->ctx, NULL,
											   nwhole + nfraction);
		if (digits == NULL)
			return refuse(reader, CANONICAL_TEXT_NO_MEMORY, text->start,
						  (size_t) (text->end - text->start));
	}
	memcpy(digits, whole, nwhole);
	memcpy(digits + nwhole, fraction, nfraction);
	number->negative = text->negative;
	number->digits = digits;
	number->ndigits = nwhole + nfraction;
	number->point = (int) point;
	return true;
}

/* Is the number's text canonical as it is? */
static inline bool
number_is_canonical(const NumberText *number)
{
	if (number->has_exponent || number->nwhole > 21)
		return false;
	if (number->nfraction == 0)
		return number->whole[0] != '0' || !number->negative;
	if (number->fraction[number->nfraction - 1] == '0')
		return false;
	return number->whole[0] != '0' || number->fraction[0] != '0' ||
		(number->nfraction > 5 ? memcmp(number->fraction, "000000", 6) != 0 : true);
}

/* Check the number at "at".  Gives what follows it, or NULL. */
static const char *
check_number(Reader *reader, const char *at)
{
	NumberText	number;
	CanonicalNumber value;
	char		digits[SHORT_NUMBER_DIGITS];
	char	   *block;
	bool		is_jcs;

	if (!scan_number(at, reader->end, &number))
		return refuse(reader, CANONICAL_TEXT_NUMBER, number.end, 1), NULL;
	if ((number.has_exponent || number.end - at > CANONICAL_FRACTION_DIGITS_MAX) &&
		!in_range(&number))
		return refuse(reader, CANONICAL_TEXT_RANGE, at,
					  (size_t) (number.end - at)), NULL;
	if (reader->mode == CANONICAL_JCS &&
		(number.has_exponent || number.nwhole + number.nfraction > 15))
	{
		if (!gather_digits(reader, &number, digits, &block, &value))
			return NULL;
		is_jcs = canonical_number_is_jcs(&value);
		if (block != NULL)
			reader->host->release(reader->host->ctx, block);
		if (!is_jcs)
			return refuse(reader, CANONICAL_TEXT_JCS, at,
						  (size_t) (number.end - at)), NULL;
	}
	return number.end;
}

/* Write the valid number at "at".  Gives what follows it, or NULL. */
static const char *
write_number(Reader *reader, const char *at)
{
	NumberText	number;
	CanonicalNumber value;
	char		digits[SHORT_NUMBER_DIGITS];
	char	   *block;

	(void) scan_number(at, reader->end, &number);
	if (number_is_canonical(&number))
	{
		canonical_bytes(reader->sink, at, (size_t) (number.end - at));
		return number.end;
	}
	if (!gather_digits(reader, &number, digits, &block, &value))
		return NULL;
	canonical_number(reader->sink, &value);
	if (block != NULL)
		reader->host->release(reader->host->ctx, block);
	return number.end;
}

/*
 * Where containers end
 */

/* Make room for one element more in an array that grows. */
static void *
more_space(Reader *reader, void *array, size_t *space, size_t needed,
		   size_t size, const void *small)
{
	const CanonicalTextHost *host = reader->host;
	size_t		more = *space == 0 ? 64 : *space;
	void	   *bigger;

	while (more < needed)
		more *= 2;
	bigger = host->resize(host->ctx, array == small ? NULL : array, more * size);
	if (bigger == NULL)
		return refuse(reader, CANONICAL_TEXT_NO_MEMORY, reader->text, 0), NULL;
	if (array == small && array != NULL)
		memcpy(bigger, array, *space * size);
	*space = more;
	return bigger;
}

/* Note that the container that begins at "start" ends before "end". */
static bool
note_long(Reader *reader, uint32_t start, uint32_t end)
{
	if (reader->nlongs == reader->longs_space)
	{
		void	   *more = more_space(reader, reader->longs, &reader->longs_space,
									  reader->nlongs + 1, sizeof(LongContainer), NULL);

		if (more == NULL)
			return false;
		reader->longs = more;
	}
	reader->longs[reader->nlongs].start = start;
	reader->longs[reader->nlongs].end = end;
	reader->nlongs++;
	return true;
}

static inline void
note_in_window(Reader *reader, uint32_t start, uint32_t end)
{
	reader->ends[(start - reader->window_start) / WINDOW_GRAIN] = end;
}

/* Move heap[root] down to its place among the "n" of a heap. */
static void
sift_down(LongContainer *heap, size_t root, size_t n)
{
	LongContainer moving = heap[root];
	size_t		child;

	while ((child = 2 * root + 1) < n)
	{
		if (child + 1 < n && heap[child].start < heap[child + 1].start)
			child++;
		if (heap[child].start <= moving.start)
			break;
		heap[root] = heap[child];
		root = child;
	}
	heap[root] = moving;
}

/* Sort the long containers by where they begin. */
static void
sort_longs(Reader *reader)
{
	LongContainer *longs = reader->longs;
	size_t		at;

	for (at = reader->nlongs / 2; at > 0; at--)
		sift_down(longs, at - 1, reader->nlongs);
	for (at = reader->nlongs; at > 1; at--)
	{
		LongContainer last = longs[at - 1];

		longs[at - 1] = longs[0];
		longs[0] = last;
		sift_down(longs, 0, at - 1);
	}
}

/* Where the long container at "start" ends; zero: it is not long. */
static uint32_t
find_long(const Reader *reader, uint32_t start)
{
	size_t		low = 0;
	size_t		high = reader->nlongs;

	while (low < high)
	{
		size_t		middle = low + (high - low) / 2;

		if (reader->longs[middle].start == start)
			return reader->longs[middle].end;
		if (reader->longs[middle].start < start)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

/*
 * Read over the valid container at "at", which is not long, and give what
 * follows it.  If "to_window", it becomes the window.
 */
static const char *
read_over(Reader *reader, const char *at, bool to_window)
{
	size_t		depth = 0;
	bool		escaped;

	for (;; at++)
	{
		switch (*at)
		{
			case '"':
				at = skip_string(at, &escaped) - 1;
				break;
			case '{':
			case '[':
				reader->open[depth++] = (uint32_t) (at - reader->text);
				break;
			case '}':
			case ']':
				depth--;
				if (depth == 0)
					return at + 1;
				if (to_window && reader->text[reader->open[depth - 1]] == '{')
					note_in_window(reader, reader->open[depth],
								   (uint32_t) (at + 1 - reader->text));
				break;
			default:
				break;
		}
	}
}

/* Let the container at "at", which is not long, become the window. */
static bool
move_window(Reader *reader, const char *at)
{
	if (reader->ends == NULL)
	{
		reader->ends = reader->host->resize(reader->host->ctx, NULL,
											WINDOW_SIZE / WINDOW_GRAIN * sizeof(uint32_t));
		if (reader->ends == NULL)
			return refuse(reader, CANONICAL_TEXT_NO_MEMORY, at, 0);
	}
	reader->window_start = (uint32_t) (at - reader->text);
	reader->window_end = (uint32_t) (read_over(reader, at, true) - reader->text);
	return true;
}

/*
 * Behind the container at "at", the value of a member of the object at
 * "object"; NULL without memory.
 */
static const char *
skip_container(Reader *reader, const char *at, const char *object,
			   bool object_is_long)
{
	uint32_t	start = (uint32_t) (at - reader->text);
	uint32_t	end;

	if (object_is_long)
	{
		end = find_long(reader, start);
		return end > 0 ? reader->text + end : read_over(reader, at, false);
	}
	if ((start < reader->window_start || start >= reader->window_end) &&
		!move_window(reader, object))
		return NULL;
	return reader->text +
		reader->ends[(start - reader->window_start) / WINDOW_GRAIN];
}

/*
 * First pass
 */

/* A container was closed before "at", at "depth" open ones. */
static inline bool
note_closed(Reader *reader, size_t depth, const char *at)
{
	uint32_t	start = reader->open[depth];
	uint32_t	end = (uint32_t) (at - reader->text);

	if (reader->window_end > 0)
	{
		if (depth > 0 && reader->text[reader->open[depth - 1]] == '{')
			note_in_window(reader, start, end);
		return true;
	}
	return end - start <= WINDOW_SIZE || note_long(reader, start, end);
}

static const char *
check_literal(Reader *reader, const char *at, const char *literal, size_t len)
{
	size_t		left = (size_t) (reader->end - at);
	size_t		i;

	for (i = 0; i < len; i++)
	{
		if (i == left || at[i] != literal[i])
			return refuse(reader, CANONICAL_TEXT_NO_VALUE, at + (i == left ? left : 0), 1), NULL;
	}
	return at + len;
}

/* Check a scalar.  Gives what follows it, or NULL. */
static const char *
check_scalar(Reader *reader, const char *at)
{
	switch (*at)
	{
		case '"':
			return check_string(reader, at);
		case 't':
			return check_literal(reader, at, "true", 4);
		case 'f':
			return check_literal(reader, at, "false", 5);
		case 'n':
			return check_literal(reader, at, "null", 4);
		default:
			if (*at == '-' || (*at >= '0' && *at <= '9'))
				return check_number(reader, at);
			return refuse(reader, CANONICAL_TEXT_NO_VALUE, at, 1), NULL;
	}
}

/* Check a member's name and the colon.  Gives where its value begins, or NULL. */
static const char *
check_name(Reader *reader, const char *at)
{
	if (at >= reader->end || *at != '"')
		return refuse(reader, CANONICAL_TEXT_NO_NAME, at, 1), NULL;
	at = check_string(reader, at);
	if (at == NULL)
		return NULL;
	at = skip_space(at, reader->end);
	if (at >= reader->end || *at != ':')
		return refuse(reader, CANONICAL_TEXT_NO_COLON, at, 1), NULL;
	return skip_space(at + 1, reader->end);
}

/*
 * What follows a value inside of containers: closes those that end here.  Gives
 * where the next value begins, what follows the outermost container when that
 * was closed ("*depth" is zero then), or NULL.
 */
static const char *
check_after_value(Reader *reader, const char *at, size_t *depth)
{
	const char *end = reader->end;

	while (*depth > 0)
	{
		char		opening = reader->text[reader->open[*depth - 1]];

		at = skip_space(at, end);
		if (at >= end)
			return refuse(reader, CANONICAL_TEXT_ENDS_EARLY, at, 0), NULL;
		if (*at == ',')
		{
			at = skip_space(at + 1, end);
			return opening == '{' ? check_name(reader, at) : at;
		}
		if (*at != (opening == '{' ? '}' : ']'))
			return refuse(reader, CANONICAL_TEXT_NO_COMMA, at, 1), NULL;
		at++;
		(*depth)--;
		if (!note_closed(reader, *depth, at))
			return NULL;
	}
	return at;
}

/* Check all of the text but for repeated names. */
static bool
check_text(Reader *reader)
{
	const char *end = reader->end;
	const char *at = skip_space(reader->text, end);
	size_t		depth = 0;

	do
	{
		tick_if_due(reader, at);
		if (at >= end)
			return refuse(reader, CANONICAL_TEXT_ENDS_EARLY, at, 0);
		if (*at == '{' || *at == '[')
		{
			char		closing = *at == '{' ? '}' : ']';

			if (depth == CANONICAL_MAX_DEPTH)
				return refuse(reader, CANONICAL_TEXT_TOO_DEEP, at, 1);
			reader->open[depth++] = (uint32_t) (at - reader->text);
			at = skip_space(at + 1, end);
			if (at < end && *at == closing)
			{
				at++;
				depth--;
				if (!note_closed(reader, depth, at))
					return false;
			}
			else
			{
				if (closing == '}')
					at = check_name(reader, at);
				if (at == NULL)
					return false;
				continue;
			}
		}
		else
			at = check_scalar(reader, at);
		if (at != NULL)
			at = check_after_value(reader, at, &depth);
		if (at == NULL)
			return false;
	} while (depth > 0);

	at = skip_space(at, end);
	return at == end || refuse(reader, CANONICAL_TEXT_GOES_ON, at, 1);
}

/*
 * Second pass
 */

/* Behind the value of a member of the object at "object"; NULL without memory. */
static const char *
skip_member_value(Reader *reader, const char *at, const char *object,
				  bool object_is_long)
{
	bool		escaped;

	switch (*at)
	{
		case '"':
			return skip_string(at, &escaped);
		case '{':
		case '[':
			return skip_container(reader, at, object, object_is_long);
		default:
			while (*at != ',' && *at != '}' && *at != ' ' && *at != '\n' &&
				   *at != '\r' && *at != '\t')
				at++;
			return at;
	}
}

/*
 * Add a member, with its name as it is written.  "entry" tells where that is,
 * and in its lowest bit whether it has escapes.
 */
static bool
add_member(Reader *reader, const char *name, size_t len, bool escaped,
		   const char *value)
{
	CanonicalMember *member;

	if (reader->nmembers == reader->members_space)
	{
		void	   *more = more_space(reader, reader->members, &reader->members_space,
									  2 * reader->nmembers, sizeof(CanonicalMember),
									  reader->small_members);

		if (more == NULL)
			return false;
		reader->members = more;
	}
	member = &reader->members[reader->nmembers++];
	member->name = name;
	member->name_len = (uint32_t) len;
	member->value = (uint32_t) (value - reader->text);
	member->entry = (uint32_t) (name - reader->text) << 1 | escaped;
	return true;
}

/*
 * Collect the members of the object at "object".  Adds the lengths of names with
 * escapes to "*escaped_len".  Gives what follows the object, or NULL.
 */
static const char *
collect_members(Reader *reader, const char *object, size_t *escaped_len)
{
	const char *end = reader->end;
	const char *at = skip_space(object + 1, end);
	bool		is_long = reader->nlongs > 0 &&
		find_long(reader, (uint32_t) (object - reader->text)) > 0;

	while (*at != '}')
	{
		const char *name = at;
		bool		escaped = false;
		size_t		len;

		at = skip_string(at, &escaped);
		len = (size_t) (at - name) - 2;
		at = skip_space(at, end);
		at = skip_space(at + 1, end);
		if (!add_member(reader, name + 1, len, escaped, at))
			return NULL;
		if (escaped)
			*escaped_len += len;
		at = skip_member_value(reader, at, object, is_long);
		if (at == NULL)
			return NULL;
		tick_if_due(reader, at);
		at = skip_space(at, end);
		if (*at == ',')
			at = skip_space(at + 1, end);
	}
	return at + 1;
}

/* Unescape the names among the members from "first" on that have escapes. */
static void
unescape_names(Reader *reader, size_t first, char *space)
{
	size_t		i;

	for (i = first; i < reader->nmembers; i++)
	{
		CanonicalMember *member = &reader->members[i];

		if ((member->entry & 1) == 0)
			continue;
		member->name_len = (uint32_t) unescape(member->name, member->name_len, space);
		member->name = space;
		space += member->name_len;
	}
}

/* Refuse the second of two members, next to each other, with one name. */
static bool
check_duplicates(Reader *reader, size_t first)
{
	const CanonicalMember *members = reader->members;
	size_t		i;

	for (i = first + 1; i < reader->nmembers; i++)
	{
		if (members[i].prefix == members[i - 1].prefix &&
			members[i].name_len == members[i - 1].name_len &&
			memcmp(members[i].name, members[i - 1].name, members[i].name_len) == 0)
			return refuse(reader, CANONICAL_TEXT_DUPLICATE,
						  reader->text + (members[i].entry >> 1) - 1, 1);
	}
	return true;
}

/* Put the members from "first" on in order. */
static bool
sort_members(Reader *reader, size_t first)
{
	const CanonicalTextHost *host = reader->host;
	size_t		needed = first + canonical_sort_space(reader->nmembers - first);

	if (needed > reader->members_space)
	{
		void	   *more = more_space(reader, reader->members, &reader->members_space,
									  needed, sizeof(CanonicalMember),
									  reader->small_members);

		if (more == NULL)
			return false;
		reader->members = more;
	}
	canonical_sort_members(reader->members + first, reader->nmembers - first,
						   host->tick, host->ctx);
	return check_duplicates(reader, first);
}

/* Write the object at "at".  Gives what follows it, or NULL. */
static const char *
write_object(Reader *reader, const char *at)
{
	const CanonicalTextHost *host = reader->host;
	size_t		first = reader->nmembers;
	size_t		escaped_len = 0;
	char	   *unescaped = NULL;
	const char *behind = collect_members(reader, at, &escaped_len);
	size_t		i;

	if (behind == NULL)
		return NULL;
	if (escaped_len > 0)
	{
		unescaped = host->resize(host->ctx, NULL, escaped_len);
		if (unescaped == NULL)
			return refuse(reader, CANONICAL_TEXT_NO_MEMORY, at, 0), NULL;
		unescape_names(reader, first, unescaped);
	}
	if (!sort_members(reader, first))
		behind = NULL;

	canonical_char(reader->sink, '{');
	for (i = first; i < reader->nmembers && behind != NULL; i++)
	{
		/* not a pointer: values move the array */
		CanonicalMember member = reader->members[i];

		if (i > first)
			canonical_char(reader->sink, ',');
		canonical_string(reader->sink, member.name, member.name_len);
		canonical_char(reader->sink, ':');
		if (write_value(reader, reader->text + member.value) == NULL)
			behind = NULL;
	}
	canonical_char(reader->sink, '}');
	reader->nmembers = first;
	if (unescaped != NULL)
		host->release(host->ctx, unescaped);
	return behind;
}

/* Write the array at "at".  Gives what follows it, or NULL. */
static const char *
write_array(Reader *reader, const char *at)
{
	const char *end = reader->end;

	canonical_char(reader->sink, '[');
	at = skip_space(at + 1, end);
	while (*at != ']')
	{
		at = write_value(reader, at);
		if (at == NULL)
			return NULL;
		at = skip_space(at, end);
		if (*at == ',')
		{
			canonical_char(reader->sink, ',');
			at = skip_space(at + 1, end);
		}
	}
	canonical_char(reader->sink, ']');
	return at + 1;
}

/* Write the valid value at "at".  Gives what follows it, or NULL. */
static const char *
write_value(Reader *reader, const char *at)
{
	switch (*at)
	{
		case '{':
			return write_object(reader, at);
		case '[':
			return write_array(reader, at);
		case '"':
			return write_string(reader, at);
		case 't':
		case 'n':
			canonical_bytes(reader->sink, at, 4);
			return at + 4;
		case 'f':
			canonical_bytes(reader->sink, at, 5);
			return at + 5;
		default:
			return write_number(reader, at);
	}
}

/*
 * The beginning: the window is all of a short text, and nothing of a long one.
 */
static bool
begin(Reader *reader)
{
	size_t		len = (size_t) (reader->end - reader->text);
	const size_t grains = (len + WINDOW_GRAIN - 1) / WINDOW_GRAIN;

	if (len >= 3 && memcmp(reader->text, "\xEF\xBB\xBF", 3) == 0)
		return refuse(reader, CANONICAL_TEXT_BYTE_ORDER_MARK, reader->text, 3);
	if (len > WINDOW_SIZE)
		return true;
	reader->window_end = (uint32_t) len;
	reader->ends = reader->small_window;
	if (len > SMALL_WINDOW)
		reader->ends = reader->host->resize(reader->host->ctx, NULL,
											grains * sizeof(uint32_t));
	return reader->ends != NULL ||
		refuse(reader, CANONICAL_TEXT_NO_MEMORY, reader->text, 0);
}

/* Give back what the reader still holds. */
static void
give_back(Reader *reader)
{
	const CanonicalTextHost *host = reader->host;

	if (reader->ends != NULL && reader->ends != reader->small_window)
		host->release(host->ctx, reader->ends);
	if (reader->longs != NULL)
		host->release(host->ctx, reader->longs);
	if (reader->members != reader->small_members)
		host->release(host->ctx, reader->members);
}

/*
 * Write the canonical form of a JSON text.  On false, "error" says what is
 * wrong; the sink may have got a part of the text then.  The caller flushes the
 * sink.
 *
 *	utf8	the text; what is not valid UTF-8 is refused
 *	host	where memory comes from
 */
bool
canonical_text(CanonicalSink *sink, const char *utf8, size_t len,
			   CanonicalMode mode, const CanonicalTextHost *host,
			   CanonicalTextError *error)
{
	Reader		reader;
	bool		done;

	reader.text = utf8;
	reader.end = utf8 + len;
	reader.next_tick = utf8;
	reader.sink = sink;
	reader.mode = mode;
	reader.host = host;
	reader.error = error;
	reader.window_start = reader.window_end = 0;
	reader.ends = NULL;
	reader.longs = NULL;
	reader.nlongs = reader.longs_space = 0;
	reader.members = reader.small_members;
	reader.nmembers = 0;
	reader.members_space = SMALL_MEMBERS;

	error->fault = CANONICAL_TEXT_FINE;
	if (len > CANONICAL_TEXT_MAX)
		return refuse(&reader, CANONICAL_TEXT_TOO_LONG, utf8, 0);
	done = begin(&reader) && check_text(&reader);
	if (done)
	{
		sort_longs(&reader);
		reader.next_tick = utf8;
		done = write_value(&reader, skip_space(utf8, reader.end)) != NULL;
	}
	give_back(&reader);
	return done;
}
