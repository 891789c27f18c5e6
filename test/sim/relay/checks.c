/*-------------------------------------------------------------------------
 *
 * checks.c
 *		The invariants of the relay.
 *
 * They look at what was committed, sent, stored and marked, and never ask the
 * rules.  Only violations-counted does: it looks at the figure that the rules
 * give of themselves.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

/* A row was handed to the library. */
void
check_sent(World *world, int r)
{
	const Row  *row = &world->row[r];
	int			most = world->config.max_per_key[row->topic];
	int			out = 0;
	int			of_key = 0;

	for (int other = 0; other < world->nrows; other++)
	{
		const Row  *o = &world->row[other];

		out += o->out;
		of_key += o->in_library && o->topic == row->topic && o->key == row->key && row->key >= 0;
	}
	if (out > world->config.window)
		broke(world, INVARIANT_window, "%d rows are handed to Kafka and not marked, of %d", out, world->config.window);
	if (most > 0 && of_key > most)
		broke(world, INVARIANT_one_of_key, "%d rows of topic %d, key %d are in flight", of_key, row->topic, row->key);
}

/* Whether row n may be stored after row m, a later one of its key. */
static bool
may_follow(const World *world, const Row *n, const Row *m)
{
	if (n->visible_at > m->sent_at)
		return true;			/* it was committed when that one was on its way */
	if (world->topic[n->topic].torn || n->partition != m->partition || n->incarnation != m->incarnation ||
		world->topic[n->topic].partitions != world->config.partitions[n->topic])
		return true;			/* the topic got other partitions, and keys have moved */
	return world->config.skip[n->topic] && n->parked_from > 0 && n->parked_from <= m->sent_at;
}

/* Kafka has stored a record. */
void
check_stored(World *world, const Message *message, int partition)
{
	Row		   *row = &world->row[message->row];

	world->history++;
	if (row->visible_at == 0 && !row->published)
		broke(world, INVARIANT_no_ghost, "row %d is stored, and was not committed", message->row);
	if (row->stored++ > 0)
	{
		world->repeats++;
		if (world->repeats > world->ends * world->config.window + world->resets)
			broke(world, INVARIANT_repeats, "%lld repeats, after %lld ends and %lld resets",
				  (long long) world->repeats, (long long) world->ends, (long long) world->resets);
		return;
	}
	row->partition = partition;
	row->incarnation = world->topic[row->topic].incarnation;
	row->sent_at = message->read_at;
	if (row->key < 0)
		return;
	for (int other = 0; other < world->nrows; other++)
	{
		const Row  *o = &world->row[other];

		if (o->stored > 0 && o->topic == row->topic && o->key == row->key && o->seq > row->seq &&
			!may_follow(world, row, o))
			broke(world, INVARIANT_order, "row %d (seq %lld) of topic %d, key %d is stored after row %d (seq %lld)",
				  message->row, (long long) row->seq, row->topic, row->key, other, (long long) o->seq);
	}
}

/* A row is marked. */
void
check_marked(World *world, int r)
{
	if (world->row[r].stored == 0)
		broke(world, INVARIANT_marked, "row %d is marked, and was never stored", r);
}

/* A refusal is noted: one attempt is used. */
void
check_refused(World *world, int r)
{
	const Row  *row = &world->row[r];

	if (!row->poison && !row->broken && row->bytes <= world->config.max_bytes[row->topic])
		broke(world, INVARIANT_parked, "row %d uses an attempt, and nothing is wrong with it", r);
}

/* Whether an earlier row of the key is parked, and holds it. */
static bool
is_held(const World *world, const Row *row)
{
	for (int r = 0; r < world->nrows && row->key >= 0 && !world->config.skip[row->topic]; r++)
	{
		const Row  *o = &world->row[r];

		if (o->parked && !o->deleted && o->topic == row->topic && o->key == row->key && o->seq < row->seq)
			return true;
	}
	return false;
}

/* Whether a row has got as far as it can without an operator. */
bool
is_settled(const World *world, const Row *row)
{
	return row->visible_at == 0 || row->deleted || row->published || row->parked || is_held(world, row);
}

/* Committed rows that are neither published nor (if they count) parked. */
int
count_left(const World *world, bool parked_too)
{
	int			left = 0;

	for (int r = 0; r < world->nrows; r++)
	{
		const Row  *row = &world->row[r];

		left += row->visible_at > 0 && !row->deleted && !row->published && (parked_too || !is_settled(world, row));
	}
	return left;
}

/*
 * After each step.  A topic that is made anew, or gets more partitions, moves keys
 * to where nothing is known of them.
 */
void
check_end(World *world)
{
	if (world->worker.phase == DEAD || world->rules.counts.order_violations == 0 || world->config.grow)
		return;
	for (int t = 0; t < world->config.topics; t++)
		if (world->topic[t].torn)
			return;
	broke(world, INVARIANT_counted, "the rules count %lld violations of the order",
		  (long long) world->rules.counts.order_violations);
}
