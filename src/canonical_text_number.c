/*-------------------------------------------------------------------------
 *
 * canonical_text_number.c
 *	  Numbers of JSON text: checked, then written canonically.
 *
 *-------------------------------------------------------------------------
 */
#include "canonical_text_reader.h"

/* Digits that fit without allocating. */
#define SHORT_NUMBER_DIGITS 128

/* Exponents from here on are too large for any number, for jsonb too. */
#define EXPONENT_LIMIT 1073741823

/* Digits that a number can surely have in both modes, when it has no exponent. */
#define HARMLESS_DIGITS 15

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

static inline const char *
skip_digits(const char *at, const char *end)
{
	while (at < end && *at >= '0' && *at <= '9')
		at++;
	return at;
}

/* The exponent behind the letter, cut off where no number is that large. */
static bool
scan_exponent(NumberText *number, const char *at, const char *end)
{
	bool		negative = false;
	int64_t		exponent = 0;
	const char *digits;

	if (at < end && (*at == '+' || *at == '-'))
		negative = *at++ == '-';
	for (digits = at; at < end && *at >= '0' && *at <= '9'; at++)
	{
		exponent = exponent * 10 + (*at - '0');
		if (exponent > EXPONENT_LIMIT)
			exponent = EXPONENT_LIMIT;
	}
	number->exponent = (int) (negative ? -exponent : exponent);
	number->has_exponent = true;
	number->end = at;
	return at > digits;
}

/*
 * Take a number apart, which begins at "at" with a minus sign or a digit.  On
 * false "end" of it is where it is not written as JSON writes numbers.
 */
static bool
scan_number(NumberText *number, const char *at, const char *end)
{
	number->start = at;
	number->negative = *at == '-';
	number->whole = number->negative ? at + 1 : at;
	number->fraction = number->end = skip_digits(number->whole, end);
	number->nwhole = (size_t) (number->end - number->whole);
	number->nfraction = 0;
	number->has_exponent = false;
	number->exponent = 0;
	if (number->nwhole > 1 && number->whole[0] == '0')
	{
		number->end = number->whole + 1;
		return false;
	}
	if (number->nwhole == 0)
		return false;
	if (number->end < end && *number->end == '.')
	{
		number->fraction = number->end + 1;
		number->end = skip_digits(number->fraction, end);
		number->nfraction = (size_t) (number->end - number->fraction);
		if (number->nfraction == 0)
			return false;
	}
	if (number->end < end && (*number->end == 'e' || *number->end == 'E'))
		return scan_exponent(number, number->end + 1, end);
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
	int64_t		point = (int64_t) number->nwhole + number->exponent;
	int64_t		fraction = (int64_t) number->nfraction - number->exponent;
	size_t		at;

	if (number->exponent <= -EXPONENT_LIMIT || number->exponent >= EXPONENT_LIMIT ||
		fraction > CANONICAL_FRACTION_DIGITS_MAX)
		return false;
	if (point <= CANONICAL_WHOLE_DIGITS_MAX)
		return true;
	if (digits[0] == '0')
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
 * they fit, else in a block, which "*block" is then.  False without memory.
 */
static bool
gather_digits(CanonicalReader *reader, const NumberText *text,
			  CanonicalNumber *number, char *space, char **block)
{
	const char *whole = text->whole;
	size_t		nwhole = text->nwhole;
	const char *fraction = text->fraction;
	size_t		nfraction = text->nfraction;
	int64_t		point = (int64_t) nwhole + text->exponent;
	char	   *digits = space;

	while (nfraction > 0 && fraction[nfraction - 1] == '0')
		nfraction--;
	while (nfraction == 0 && nwhole > 0 && whole[nwhole - 1] == '0')
		nwhole--;
	if (nwhole == 1 && whole[0] == '0')
	{
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
		digits = *block = canonical_resize(reader, NULL, nwhole + nfraction);
		if (digits == NULL)
			return false;
	}
	memcpy(digits, whole, nwhole);
	memcpy(digits + nwhole, fraction, nfraction);
	number->negative = text->negative;
	number->digits = digits;
	number->ndigits = nwhole + nfraction;
	number->point = (int) point;
	return true;
}

/* Check that mode jcs takes the number. */
static bool
check_jcs(CanonicalReader *reader, const NumberText *text)
{
	CanonicalNumber number;
	char		space[SHORT_NUMBER_DIGITS];
	char	   *block;
	bool		is_jcs;

	if (!gather_digits(reader, text, &number, space, &block))
		return false;
	is_jcs = canonical_number_is_jcs(&number);
	if (block != NULL)
		canonical_release(reader, block);
	return is_jcs || canonical_refuse(reader, CANONICAL_TEXT_JCS, text->start,
									  (size_t) (text->end - text->start));
}

/* Check a number, which begins with a minus sign or a digit. */
const char *
canonical_check_number(CanonicalReader *reader, const char *at)
{
	NumberText	number;

	if (!scan_number(&number, at, reader->end))
		return canonical_refuse_at(reader, CANONICAL_TEXT_NUMBER, number.end, 1);
	if (!number.has_exponent && number.nwhole + number.nfraction <= HARMLESS_DIGITS)
		return number.end;
	if (!in_range(&number))
		return canonical_refuse_at(reader, CANONICAL_TEXT_RANGE, at,
								   (size_t) (number.end - at));
	if (reader->mode == CANONICAL_JCS && !check_jcs(reader, &number))
		return NULL;
	return number.end;
}

/* Is the valid number canonical as it is written? */
static inline bool
is_canonical(const NumberText *number)
{
	if (number->has_exponent || number->nwhole > 21)
		return false;
	if (number->nfraction == 0)
		return number->whole[0] != '0' || !number->negative;
	if (number->fraction[number->nfraction - 1] == '0')
		return false;
	return number->whole[0] != '0' || number->nfraction <= 5 ||
		memcmp(number->fraction, "000000", 6) != 0;
}

/* Write the valid number that begins at "at".  NULL without memory. */
const char *
canonical_write_number(CanonicalReader *reader, const char *at)
{
	NumberText	text;
	CanonicalNumber number;
	char		space[SHORT_NUMBER_DIGITS];
	char	   *block;

	(void) scan_number(&text, at, reader->end);
	if (is_canonical(&text))
	{
		canonical_bytes(reader->sink, at, (size_t) (text.end - at));
		return text.end;
	}
	if (!gather_digits(reader, &text, &number, space, &block))
		return NULL;
	canonical_number(reader->sink, &number);
	if (block != NULL)
		canonical_release(reader, block);
	return text.end;
}
