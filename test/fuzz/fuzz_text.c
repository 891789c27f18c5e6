/*-------------------------------------------------------------------------
 *
 * fuzz_text.c
 *	  The reader of JSON text under a fuzzer: what must hold of any text.
 *
 * libFuzzer calls LLVMFuzzerTestOneInput with texts; test/fuzz/run builds and
 * runs it.  The reader is the very source of the extension.
 *
 *-------------------------------------------------------------------------
 */
#include <stdint.h>
#include <string.h>

#include "canonical_text.h"
#include "form.h"
#include "reader.h"

static bool
same_answer(const Answer *a, const Answer *b)
{
	if (a->accepted != b->accepted)
		return false;
	if (!a->accepted)
		return a->fault == b->fault && a->at == b->at &&
			a->fault_len == b->fault_len;
	return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

/*
 * A number that mode jcs accepts has the digits that its double is printed with:
 * the double rounded to as many digits, unless that is another double (beside a
 * power of two it may be); rounded to one digit less it is another one.  This
 * does not depend on how the reader decides, and is not all of the truth:
 * test/hash compares with whole printers.
 */
static void
check_double(const Answer *answer)
{
	char		text[64];
	char		rounded[64];
	char	   *digit;
	double		value;
	int			ndigits = 0;

	EXPECT(answer->len < sizeof(text));
	memcpy(text, answer->text, answer->len);
	text[answer->len] = '\0';
	value = strtod(text, NULL);
	EXPECT(value - value == 0);
	if (value == 0)
	{
		EXPECT(strcmp(text, "0") == 0);
		return;
	}

	/* significant digits: without the zeros at either end */
	for (digit = text; *digit && *digit != 'e'; digit++)
	{
		if (*digit >= '1' && *digit <= '9')
		{
			const char *last = digit;
			char	   *at;

			for (at = digit; *at && *at != 'e'; at++)
			{
				if (*at >= '1' && *at <= '9')
					last = at;
			}
			for (at = digit; at <= last; at++)
				ndigits += *at != '.';
			break;
		}
	}
	EXPECT(ndigits >= 1 && ndigits <= 17);
	snprintf(rounded, sizeof(rounded), "%.*e", ndigits - 1, value);
	if (strtod(rounded, NULL) == value)
	{
		Answer		again = read_text(rounded, strlen(rounded), CANONICAL_EXACT, 0, -1);

		EXPECT(again.accepted && same_answer(answer, &again));
		free(again.text);
	}
	if (ndigits > 1)
	{
		snprintf(rounded, sizeof(rounded), "%.*e", ndigits - 2, value);
		EXPECT(strtod(rounded, NULL) != value);
	}
}

/* Some number that follows from the text, so that a finding is found again. */
static unsigned long
draw(const uint8_t *data, size_t len)
{
	unsigned long hash = 5381;
	size_t		i;

	for (i = 0; i < len; i++)
		hash = hash * 33 ^ data[i];
	return hash;
}

/* Mode jcs gives the same text or refuses a number. */
static void
check_modes(const Answer *exact, const Answer *jcs)
{
	if (jcs->accepted)
		EXPECT(same_answer(exact, jcs));
	else if (jcs->fault == CANONICAL_TEXT_JCS)
		EXPECT(jcs->fault_len > 0);
	else
		EXPECT(!exact->accepted);
}

/* How large buffers and windows are does not matter, nor where they end. */
static void
check_limits(const char *text, size_t len, const Answer *exact, unsigned long lot)
{
	Answer		other = read_text(text, len, CANONICAL_EXACT,
								  CANONICAL_BUFFER_SIZE - lot % 64, -1);

	EXPECT(same_answer(exact, &other));
	free(other.text);
	other = small_read_text(text, len, CANONICAL_EXACT, lot % 64, -1);
	EXPECT(same_answer(exact, &other));
	free(other.text);
	if (other.ticks > 0)
		small_jump_out(text, len, (long) (lot % (unsigned long) other.ticks));
}

/* What was accepted became canonical text, which is its own, in either mode. */
static void
check_canonical(const Answer *exact, const Answer *jcs)
{
	Answer		other;

	check_form(exact->text, exact->len);
	other = read_text(exact->text, exact->len, CANONICAL_EXACT, 0, -1);

	EXPECT(same_answer(exact, &other));
	free(other.text);
	other = read_text(exact->text, exact->len, CANONICAL_JCS, 0, -1);
	EXPECT(jcs->accepted ? same_answer(jcs, &other) : other.fault == CANONICAL_TEXT_JCS);
	free(other.text);
}

/* One allocation fails: it says so. */
static void
check_without_memory(const char *text, size_t len,
					 Answer (*read) (const char *, size_t, int, size_t, long),
					 unsigned long lot)
{
	Answer		whole = read(text, len, CANONICAL_EXACT, 0, -1);
	Answer		failing;

	if (whole.allocations > 0)
	{
		failing = read(text, len, CANONICAL_EXACT, 0,
					   (long) (lot % (unsigned long) whole.allocations));
		EXPECT(!failing.accepted && failing.fault == CANONICAL_TEXT_NO_MEMORY);
	}
	free(whole.text);
}

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	const char *text = (const char *) data;
	unsigned long lot = draw(data, len);
	Answer		exact = read_text(text, len, CANONICAL_EXACT, 0, -1);
	Answer		jcs = read_text(text, len, CANONICAL_JCS, 0, -1);

	check_modes(&exact, &jcs);
	check_limits(text, len, &exact, lot);
	if (exact.accepted)
		check_canonical(&exact, &jcs);
	if (jcs.accepted && strchr("-0123456789", jcs.text[0]))
		check_double(&jcs);
	check_without_memory(text, len, read_text, lot);
	check_without_memory(text, len, small_read_text, lot);
	if (exact.ticks > 0)
		jump_out(text, len, (long) (lot % (unsigned long) exact.ticks));

	free(exact.text);
	free(jcs.text);
	return 0;
}
