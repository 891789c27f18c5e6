/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  The reader of JSON text in surroundings that fail on demand.
 *
 *-------------------------------------------------------------------------
 */
#include <setjmp.h>
#include <string.h>

#include "canonical_text.h"
#include "reader.h"

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

/*
 * Read a text, from a copy that ends where a wrong access is seen.
 *
 *	filler	bytes before the text in the sink, to move where its buffer is full
 *	fail_at	this allocation gives NULL; -1: none
 */
Answer
read_text(const char *data, size_t len, int mode, size_t filler, long fail_at)
{
	World		world;
	CanonicalTextHost host = {resize, release, tick, &world};
	CanonicalSink sink;
	CanonicalTextError error;
	Answer		answer = {.accepted = false};
	char	   *copy = malloc(len ? len : 1);
	size_t		i;

	EXPECT(copy != NULL);
	if (len > 0)
		memcpy(copy, data, len);
	world_init(&world, fail_at, -1);
	canonical_init(&sink, write_text, &world);
	for (i = 0; i < filler; i++)
		canonical_char(&sink, '#');
	answer.accepted = canonical_text(&sink, copy, len, (CanonicalMode) mode, &host, &error);
	free(copy);

	/* nothing is left behind, whatever the answer */
	EXPECT(world.blocks.next == &world.blocks);
	EXPECT(answer.accepted == (error.fault == CANONICAL_TEXT_FINE));
	answer.allocations = world.allocations;
	answer.ticks = world.ticks;
	if (answer.accepted)
	{
		canonical_flush(&sink);
		EXPECT(world.len > filler);
		answer.len = world.len - filler;
		memmove(world.text, world.text + filler, answer.len);
		write_text(&world, "", 1);
		world.text[answer.len] = '\0';
		answer.text = world.text;
	}
	else
	{
		EXPECT(error.at <= len && error.len <= len - error.at);
		answer.fault = (int) error.fault;
		answer.at = error.at;
		answer.fault_len = error.len;
		free(world.text);
	}
	return answer;
}

/* A reader that is left by a jump leaves nothing that others would miss. */
void
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
