/*-------------------------------------------------------------------------
 *
 * store.c
 *		The outbox: transactions that write, commit late, abort, prepare.
 *
 * A commit has four steps, as in src/idem_note.c: it is announced, it becomes
 * visible, its hints are lowered, the announcement is taken back.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

static void
wake(World *world)
{
	world->latch = true;
}

static void
lower_hint(World *world, int leaf, int64_t seq)
{
	if (!world->hinted[leaf] || seq < world->hint[leaf])
		world->hint[leaf] = seq;
	world->hinted[leaf] = true;
}

/* A seq: usually the next, sometimes one that a client chose, or took long ago. */
static int64_t
draw_seq(World *world, Random *random)
{
	int			luck = (int) random_below(random, 1000);

	if (luck < 2)
		return RELAY_SEQ_MAX - world->nrows;
	if (luck < 4)
		return RELAY_SEQ_MIN + world->nrows;
	if (luck < 20)
		world->next_seq += random_between(random, 1, 5);
	return world->next_seq++;
}

static void
add_row(World *world, Writer *writer, Random *random)
{
	const Config *config = &world->config;
	Row		   *row = &world->row[world->nrows];
	int64_t		seq = draw_seq(world, random);

	*row = (Row) {.seq = seq,.next = writer->first_row,.partition = -1};
	row->leaf = FIRST_LEAF - LEAVES + 1 + (random_chance(random, 800) ? 0 : (int) random_below(random, LEAVES));
	row->topic = (int) random_below(random, (uint32_t) config->topics);
	row->key = random_chance(random, (uint32_t) config->no_key) ? -1 :
		(int) random_below(random, (uint32_t) config->keys);
	row->poison = !world->calm && random_chance(random, (uint32_t) config->poison);
	row->broken = !world->calm && random_chance(random, (uint32_t) config->poison / 4);
	row->bytes = 100 + random_below(random, 400);
	if (!world->calm && random_chance(random, (uint32_t) config->big))
		row->bytes = 3000 + random_below(random, 6000);
	writer->first_row = world->nrows++;
	TRACE(world, "row %d: seq %lld, leaf %d, topic %d, key %d, %u bytes%s%s", writer->first_row,
		  (long long) seq, row->leaf, row->topic, row->key, row->bytes,
		  row->poison ? ", poison" : "", row->broken ? ", broken" : "");
}

static void
forget_rows(World *world, int first)
{
	for (int r = first; r >= 0; r = world->row[r].next)
		world->row[r].deleted = true;
}

static void
make_visible(World *world, int first)
{
	world->stamp++;
	for (int r = first; r >= 0; r = world->row[r].next)
		world->row[r].visible_at = world->stamp;
}

/* A writer takes its next step. */
void
writer_step(World *world, int w, Random *random)
{
	Writer	   *writer = &world->writer[w];

	switch (writer->state)
	{
		case IDLE:
			if (world->calm || world->nrows >= MAX_ROWS)
				return;
			writer->first_row = -1;
			writer->state = WRITING;
			add_row(world, writer, random);
			return;
		case WRITING:
			if (!world->calm && world->nrows < MAX_ROWS && random_chance(random, 500))
			{
				add_row(world, writer, random);
				return;
			}
			if (random_chance(random, (uint32_t) world->config.abort))
			{
				TRACE(world, "writer %d aborts", w);
				forget_rows(world, writer->first_row);
				writer->state = IDLE;
			}
			else if (world->nprepared < MAX_PREPARED && random_chance(random, (uint32_t) world->config.prepare))
			{
				TRACE(world, "writer %d prepares", w);
				world->prepared[world->nprepared++] = writer->first_row;
				writer->state = IDLE;
			}
			else
				writer->state = ANNOUNCED;
			return;
		case ANNOUNCED:
			make_visible(world, writer->first_row);
			TRACE(world, "writer %d is visible, at %lld", w, (long long) world->stamp);
			writer->state = VISIBLE;
			return;
		case VISIBLE:
			for (int r = writer->first_row; r >= 0; r = world->row[r].next)
				lower_hint(world, world->row[r].leaf, world->row[r].seq);
			wake(world);
			TRACE(world, "writer %d has told", w);
			writer->state = TOLD;
			return;
		case TOLD:
			writer->state = IDLE;
			return;
	}
}

/* COMMIT PREPARED or ROLLBACK PREPARED. */
void
prepared_step(World *world, Random *random)
{
	int			n;

	if (world->nprepared == 0)
		return;
	n = (int) random_below(random, (uint32_t) world->nprepared);
	if (random_chance(random, 800))
	{
		make_visible(world, world->prepared[n]);
		TRACE(world, "rows %d... are committed, prepared before", world->prepared[n]);
		if (FAULT != FAULT_no_prepared)
			world->sweep = true;
		wake(world);
	}
	else
		forget_rows(world, world->prepared[n]);
	world->prepared[n] = world->prepared[--world->nprepared];
}

/* An operator looks at a parked row, or has an event sent again. */
void
operator_step(World *world, Random *random)
{
	int			r;
	Row		   *row;

	if (world->nrows == 0)
		return;
	r = (int) random_below(random, (uint32_t) world->nrows);
	row = &world->row[r];
	if (row->visible_at == 0 || row->deleted)
		return;
	if (row->parked)
	{
		if (random_chance(random, world->calm ? 0 : 200))
		{
			TRACE(world, "row %d is deleted", r);
			row->deleted = true;
			world->holds = true;
			wake(world);
			return;
		}
		if (world->calm || random_chance(random, 700))
		{
			row->poison = row->broken = false;
			row->bytes = row->bytes > 500 ? 300 : row->bytes;
		}
		row->parked = false;
		row->attempts = random_chance(random, 800) ? 0 : row->attempts;
		TRACE(world, "row %d is requeued", r);
	}
	else if (row->published && !world->calm && random_chance(random, 100))
	{
		row->published = false;
		world->resets++;
		TRACE(world, "row %d is to be sent again", r);
	}
	else
		return;
	lower_hint(world, row->leaf, row->seq);
	wake(world);
}

/* The server crashes: open transactions are gone, prepared ones stay. */
void
server_crash(World *world)
{
	TRACE(world, "the server crashes");
	for (int w = 0; w < world->config.writers; w++)
	{
		Writer	   *writer = &world->writer[w];

		if (writer->state == WRITING || writer->state == ANNOUNCED)
			forget_rows(world, writer->first_row);
		writer->state = IDLE;
	}
	for (int leaf = 0; leaf < RELAY_LEAVES; leaf++)
		world->hinted[leaf] = false;
	world->sweep = false;
	world->holds = false;
	worker_kill(world);
}

/* The first row with from <= seq <= upto that a read shows, or -1. */
int
store_next(const World *world, int leaf, int64_t from, int64_t upto)
{
	int			found = -1;

	for (int r = 0; r < world->nrows; r++)
	{
		const Row  *row = &world->row[r];
		bool		visible = row->visible_at > 0 && row->visible_at <= world->worker.snapshot;

		if (FAULT == FAULT_dirty_read)
			visible = true;
		if (row->leaf != leaf || !visible || row->deleted || row->published || row->parked ||
			row->seq < from || row->seq > upto)
			continue;
		if (found < 0 || row->seq < world->row[found].seq)
			found = r;
	}
	return found;
}

/* The lowest seq of a leaf that is being committed; RELAY_SEQ_MAX: none. */
int64_t
store_pending(const World *world, int leaf)
{
	int64_t		lowest = RELAY_SEQ_MAX;

	for (int w = 0; w < world->config.writers; w++)
	{
		const Writer *writer = &world->writer[w];
		int64_t		of_all = RELAY_SEQ_MAX;
		bool		here = false;

		if (writer->state < ANNOUNCED)
			continue;
		for (int r = writer->first_row; r >= 0; r = world->row[r].next)
		{
			if (world->row[r].seq < of_all)
				of_all = world->row[r].seq;
			here |= world->row[r].leaf == leaf;
		}
		if (here && of_all < lowest)
			lowest = of_all;
	}
	if (world->hinted[leaf] && world->hint[leaf] < lowest)
		lowest = world->hint[leaf];
	return lowest;
}

/* Whether nobody is about to write or commit. */
bool
store_idle(const World *world)
{
	for (int w = 0; w < world->config.writers; w++)
		if (world->writer[w].state != IDLE)
			return false;
	return world->nprepared == 0;
}
