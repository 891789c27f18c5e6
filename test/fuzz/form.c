/*-------------------------------------------------------------------------
 *
 * form.c
 *	  Is a text canonical?  Written from the rules alone, character by character.
 *
 * Knows nothing of the reader: UTF-8 by code points, names by UTF-16 code units,
 * one spelling for each string and each number.
 *
 *-------------------------------------------------------------------------
 */
#include <stdint.h>
#include <string.h>

#include "form.h"
#include "reader.h"

typedef struct Form
{
	const char *at;
	const char *end;
} Form;

static void check_value(Form *form);

static char
peek(const Form *form)
{
	return form->at < form->end ? *form->at : '\0';
}

static void
expect_bytes(Form *form, const char *bytes)
{
	size_t		len = strlen(bytes);

	EXPECT((size_t) (form->end - form->at) >= len && memcmp(form->at, bytes, len) == 0);
	form->at += len;
}

/* The code point of a UTF-8 sequence, which has to be the shortest one. */
static uint32_t
next_code_point(Form *form)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned char lead = (unsigned char) *form->at++;
	uint32_t	code = lead;
	int			len = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
	int			i;

	EXPECT(len > 0 && form->end - form->at >= len - 1);
	if (len > 1)
		code = lead & (0x7F >> len);
	for (i = 1; i < len; i++)
	{
		EXPECT(((unsigned char) *form->at & 0xC0) == 0x80);
		code = code << 6 | ((unsigned char) *form->at++ & 0x3F);
	}
	EXPECT(code >= least[len] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF));
	return code;
}

/* What an escape stands for: the one that this character has to have. */
static uint32_t
next_escaped(Form *form)
{
	static const char letters[] = "btnfr\"\\";
	static const char stands_for[] = "\b\t\n\f\r\"\\";
	static const char hex[] = "0123456789abcdef";
	const char *letter;
	const char *high;
	const char *low;
	uint32_t	code;

	form->at++;
	EXPECT(form->at < form->end && *form->at != '\0');
	letter = strchr(letters, *form->at);
	if (letter != NULL)
	{
		form->at++;
		return (uint32_t) stands_for[letter - letters];
	}
	expect_bytes(form, "u00");
	EXPECT(form->end - form->at >= 2 && form->at[0] != '\0' && form->at[1] != '\0');
	high = strchr(hex, form->at[0]);
	low = strchr(hex, form->at[1]);
	EXPECT(high != NULL && low != NULL);
	code = (uint32_t) ((high - hex) << 4 | (low - hex));
	EXPECT(code > 0 && code < 0x20 && strchr(stands_for, (int) code) == NULL);
	form->at += 2;
	return code;
}

/* The next character of a string, or 0 at its end. */
static uint32_t
next_character(Form *form)
{
	EXPECT(form->at < form->end);
	if (*form->at == '"')
	{
		form->at++;
		return 0;
	}
	if (*form->at == '\\')
		return next_escaped(form);
	EXPECT((unsigned char) *form->at >= 0x20);
	return next_code_point(form);
}

static void
check_string(Form *form)
{
	expect_bytes(form, "\"");
	while (next_character(form) != 0)
		;
}

/* Where a character sorts: by the first UTF-16 code unit, then by the second. */
static uint32_t
order_of(uint32_t code)
{
	return code < 0x10000 ? code << 16 : (0xD800 + ((code - 0x10000) >> 10)) << 16 | (0xDC00 + (code & 0x3FF));
}

/* Two names, from their first characters on: the first has to come first. */
static void
check_order(Form a, Form b)
{
	uint32_t	of_a;
	uint32_t	of_b;

	do
	{
		of_a = next_character(&a);
		of_b = next_character(&b);
	} while (of_a == of_b && of_a != 0);
	EXPECT(order_of(of_a) < order_of(of_b));
}

static void
check_object(Form *form)
{
	Form		previous = {NULL, NULL};

	expect_bytes(form, "{");
	while (peek(form) != '}')
	{
		Form		name;

		if (previous.at != NULL)
			expect_bytes(form, ",");
		name = *form;
		check_string(form);
		name.at++;
		if (previous.at != NULL)
			check_order(previous, name);
		previous = name;
		expect_bytes(form, ":");
		check_value(form);
	}
	form->at++;
}

static void
check_array(Form *form)
{
	bool		first = true;

	expect_bytes(form, "[");
	while (peek(form) != ']')
	{
		if (!first)
			expect_bytes(form, ",");
		first = false;
		check_value(form);
	}
	form->at++;
}

static size_t
digits_at(Form *form)
{
	const char *begin = form->at;

	while (peek(form) >= '0' && peek(form) <= '9')
		form->at++;
	return (size_t) (form->at - begin);
}

/* A number has one spelling: see section 7.1.12.1 of ECMA-262. */
static void
check_number(Form *form)
{
	bool		negative = peek(form) == '-';
	const char *whole;
	const char *fraction;
	size_t		nwhole;
	size_t		nfraction = 0;

	form->at += negative;
	whole = form->at;
	nwhole = digits_at(form);
	EXPECT(nwhole > 0 && (nwhole == 1 || *whole != '0'));
	fraction = form->at;
	if (peek(form) == '.')
	{
		form->at++;
		fraction = form->at;
		nfraction = digits_at(form);
		EXPECT(nfraction > 0 && fraction[nfraction - 1] != '0');
	}
	if (peek(form) == 'e')
	{
		bool		small = form->end - form->at > 1 && form->at[1] == '-';
		size_t		ndigits;
		const char *digits;

		expect_bytes(form, small ? "e-" : "e+");
		digits = form->at;
		ndigits = digits_at(form);
		EXPECT(nwhole == 1 && *whole != '0');
		EXPECT(ndigits > 0 && ndigits < 7 && *digits != '0');
		EXPECT(strtol(digits, NULL, 10) >= (small ? 7 : 21));
		return;
	}
	EXPECT(nwhole <= 21);
	if (*whole == '0')
	{
		EXPECT(nfraction > 0 || !negative);
		EXPECT(nfraction < 6 || memcmp(fraction, "000000", 6) != 0);
	}
}

static void
check_value(Form *form)
{
	switch (peek(form))
	{
		case '{':
			check_object(form);
			break;
		case '[':
			check_array(form);
			break;
		case '"':
			check_string(form);
			break;
		case 't':
			expect_bytes(form, "true");
			break;
		case 'f':
			expect_bytes(form, "false");
			break;
		case 'n':
			expect_bytes(form, "null");
			break;
		default:
			check_number(form);
			break;
	}
}

/* Expect all of a text to be canonical.  It has to be followed by a zero byte. */
void
check_form(const char *text, size_t len)
{
	Form		form = {text, text + len};

	check_value(&form);
	EXPECT(form.at == form.end);
}
