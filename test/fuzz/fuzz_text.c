/*-------------------------------------------------------------------------
 *
 * fuzz_text.c
 *	  The reader of JSON text under a fuzzer, with what must hold of any text.
 *
 * libFuzzer calls LLVMFuzzerTestOneInput with texts; test/fuzz/run builds and
 * runs it.  The reader is the very source of the extension; its surroundings
 * here count what it allocates, fail on demand, and leave by a jump.
 *
 *-------------------------------------------------------------------------
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/canonical_text.h"

/* A failed expectation stops the fuzzer, which keeps the text. */
#define EXPECT(condition) \
	do { \
		if (!(condition)) \
		{ \
			fprintf(stderr, "%s:%d: this does not hold: %s\n", \
					__FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

/*
 * The reader's surroundings.  Blocks are in a list, so that none is lost and
 * those of a reader that was left by a jump can be freed.
 */
typedef struct Block
{
	struct Block *next;
	struct Block *previous;
} Block;

typedef struct World
{
	Block		blocks;			/* the list's head */
	long		allocations;
	long		fail_at;		/* this allocation gives NULL; -1: none */
	long		ticks;
	long		jump_at;		/* this tick jumps; -1: none */
	jmp_buf		jump;
	char	   *text;			/* what the sink got */
	size_t		len;
	size_t		size;
} World;

typedef struct Answer
{
	bool		accepted;
	CanonicalTextError error;
	char	   *text;
	size_t		len;
	long		allocations;
	long		ticks;
} Answer;

static void
forget_block(Block *block)
{
	block->previous->next = block->next;
	block->next->previous = block->previous;
	free(block);
}

static void *
resize(void *ctx, void *block, size_t size)
{
	World	   *world = ctx;
	Block	   *old = block ? (Block *) block - 1 : NULL;
	Block	   *new;

	EXPECT(size > 0);
	if (world->allocations++ == world->fail_at)
		return NULL;
	if (old)
	{
		old->previous->next = old->next;
		old->next->previous = old->previous;
	}
	new = realloc(old, sizeof(Block) + size);
	EXPECT(new != NULL);
	new->next = world->blocks.next;
	new->previous = &world->blocks;
	world->blocks.next->previous = new;
	world->blocks.next = new;
	return new + 1;
}

static void
release(void *ctx, void *block)
{
	(void) ctx;
	if (block)
		forget_block((Block *) block - 1);
}

static void
tick(void *ctx)
{
	World	   *world = ctx;

	if (world->ticks++ == world->jump_at)
		longjmp(world->jump, 1);
}

static void
write_text(void *ctx, const char *data, size_t len)
{
	World	   *world = ctx;

	EXPECT(len > 0 && len <= CANONICAL_BUFFER_SIZE);
	if (world->size - world->len < len)
	{
		world->size = 2 * world->size + len;
		world->text = realloc(world->text, world->size);
		EXPECT(world->text != NULL);
	}
	memcpy(world->text + world->len, data, len);
	world->len += len;
}

static void
world_init(World *world, long fail_at, long jump_at)
{
	memset(world, 0, sizeof(*world));
	world->blocks.next = world->blocks.previous = &world->blocks;
	world->fail_at = fail_at;
	world->jump_at = jump_at;
}

/* Reads a text, from a copy that ends where a wrong access is seen. */
static Answer
read_text(const char *data, size_t len, CanonicalMode mode, size_t filler, long fail_at)
{
	World		world;
	CanonicalTextHost host = {resize, release, tick, &world};
	CanonicalSink sink;
	Answer		answer = {.error = {.fault = CANONICAL_TEXT_FINE}};
	char	   *copy = malloc(len ? len : 1);
	size_t		i;

	EXPECT(copy != NULL);
	if (len > 0)
		memcpy(copy, data, len);
	world_init(&world, fail_at, -1);
	canonical_init(&sink, write_text, &world);
	for (i = 0; i < filler; i++)
		canonical_char(&sink, '#');
	answer.accepted = canonical_text(&sink, copy, len, mode, &host, &answer.error);
	free(copy);

	/* nothing is left behind, whatever the answer */
	EXPECT(world.blocks.next == &world.blocks);
	EXPECT(answer.accepted == (answer.error.fault == CANONICAL_TEXT_FINE));
	answer.allocations = world.allocations;
	answer.ticks = world.ticks;
	if (answer.accepted)
	{
		canonical_flush(&sink);
		EXPECT(world.len > filler);
		answer.len = world.len - filler;
		memmove(world.text, world.text + filler, answer.len);
		answer.text = world.text;
	}
	else
	{
		EXPECT(answer.error.at <= len && answer.error.len <= len - answer.error.at);
		free(world.text);
	}
	return answer;
}

static bool
same_answer(const Answer *a, const Answer *b)
{
	if (a->accepted != b->accepted)
		return false;
	if (!a->accepted)
		return a->error.fault == b->error.fault && a->error.at == b->error.at &&
			a->error.len == b->error.len;
	return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

/* A reader that is left by a jump leaves nothing that others would miss. */
static void
jump_out(const char *data, size_t len, long jump_at)
{
	static World world;
	static CanonicalSink sink;
	CanonicalTextHost host = {resize, release, tick, &world};
	CanonicalTextError error;

	world_init(&world, -1, jump_at);
	canonical_init(&sink, write_text, &world);
	if (setjmp(world.jump) == 0)
		(void) canonical_text(&sink, data, len, CANONICAL_EXACT, &host, &error);
	while (world.blocks.next != &world.blocks)
		forget_block(world.blocks.next);
	free(world.text);
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

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	const char *text = (const char *) data;
	unsigned long lot = draw(data, len);
	Answer		exact = read_text(text, len, CANONICAL_EXACT, 0, -1);
	Answer		jcs = read_text(text, len, CANONICAL_JCS, 0, -1);
	Answer		other;

	/* Mode jcs gives the same text, or refuses; it refuses a number only. */
	if (jcs.accepted)
		EXPECT(same_answer(&exact, &jcs));
	else if (jcs.error.fault != CANONICAL_TEXT_JCS)
		EXPECT(!exact.accepted);
	if (exact.accepted && !jcs.accepted)
		EXPECT(jcs.error.fault == CANONICAL_TEXT_JCS && jcs.error.len > 0);

	/* Where the sink's buffer ends does not matter. */
	other = read_text(text, len, CANONICAL_EXACT, CANONICAL_BUFFER_SIZE - lot % 64, -1);
	EXPECT(same_answer(&exact, &other));
	free(other.text);

	/* Canonical text is its own canonical text. */
	if (exact.accepted)
	{
		other = read_text(exact.text, exact.len, CANONICAL_EXACT, 0, -1);
		EXPECT(same_answer(&exact, &other));
		free(other.text);
		other = read_text(exact.text, exact.len, CANONICAL_JCS, 0, -1);
		EXPECT(same_answer(&jcs, &other) || !(jcs.accepted || other.accepted));
		free(other.text);
	}
	if (jcs.accepted && strchr("-0123456789", jcs.text[0]))
		check_double(&jcs);

	/* Without memory it says so; a jump out of it is survived. */
	if (exact.allocations > 0)
	{
		other = read_text(text, len, CANONICAL_EXACT, 0, (long) (lot % (unsigned long) exact.allocations));
		EXPECT(!other.accepted && other.error.fault == CANONICAL_TEXT_NO_MEMORY);
		free(other.text);
	}
	if (exact.ticks > 0)
		jump_out(text, len, (long) (lot % (unsigned long) exact.ticks));

	free(exact.text);
	free(jcs.text);
	return 0;
}
