/*-------------------------------------------------------------------------
 *
 * world.c
 *		A world and its clocks.
 *
 * Real time only grows; the server's clock is off by jitter at most, either
 * way, and may be set back and forth.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <string.h>

/* Lengths, faults and habits of an episode. */
static void
draw_config(Config *config, Random *random)
{
	bool		quiet = random_chance(random, 300);

	config->keys = (int) random_between(random, 1, MAX_KEYS);
	config->workers = (int) random_between(random, 2, MAX_WORKERS);
	for (int key = 0; key < MAX_KEYS; key++)
	{
		config->style[key] = (Style) random_below(random, 3);
		config->window[key] = random_chance(random, 500) ? random_between(random, 10, 60) * TICK : 0;
	}
	config->lease = random_between(random, 2, 20) * TICK;
	config->timeout = random_between(random, 1, 8) * TICK;
	config->jitter = random_chance(random, 500) ? 0 : random_between(random, 1, 2) * TICK;
	config->margin = 2 * config->jitter + random_between(random, 0, 2) * TICK + 1;
	config->transit = random_between(random, 0, 4) * TICK;
	config->grace = config->transit + 2 * config->jitter + random_between(random, 0, 1) * TICK + 1;
	config->response_retention = random_between(random, 2, 40) * TICK;
	config->record_retention = config->response_retention + random_between(random, 0, 20) * TICK;
	config->max_tries = (int) random_between(random, 1, 8);
	config->clients_return = random_chance(random, 700);

	config->die = quiet ? 0 : (int) random_between(random, 0, 20);
	config->crash = quiet ? 0 : (int) random_between(random, 0, 4);
	config->prepare = random_chance(random, 300) ? 100 : 0;
	config->repeatable_read = random_chance(random, 500) ? 400 : 0;
	config->other_hash = random_chance(random, 500) ? 150 : 0;
	config->hang = (int) random_between(random, 0, 400);
	config->late = (int) random_between(random, 0, 500);
	config->decline = (int) random_between(random, 0, 400);
	config->savepoint = random_chance(random, 300) ? 300 : 0;
	config->clock = (int) random_between(random, 50, 300);
	config->stall = random_chance(random, 400) ? 950 : 0;
}

/* Makes the world that a seed stands for. */
void
world_init(World *world, uint64_t seed)
{
	Random		random = {seed};

	memset(world, 0, sizeof(*world));
	draw_config(&world->config, &random);
	world->real = 1000 * TICK;
	store_init(&world->store);
	for (int i = 0; i < MAX_WORKERS; i++)
		world->workers[i].tx = NO_TX;
	for (int i = 0; i < MAX_PREPARED; i++)
		world->prepared[i].tx = NO_TX;
	world->sweep.tx = NO_TX;
	world->operator.tx = NO_TX;
}

/* The message that arrives next, no later than a time. */
static Message *
next_message(World *world, int64_t until)
{
	Message    *next = NULL;

	for (int i = 0; i < MAX_MESSAGES; i++)
	{
		Message    *message = &world->messages[i];

		if (message->used && message->due <= until && (next == NULL || message->due < next->due))
			next = message;
	}
	return next;
}

/* Lets real time go on; what arrives meanwhile does so at its time. */
static void
advance(World *world, int64_t real)
{
	Message    *message;

	while ((message = next_message(world, real)) != NULL)
	{
		if (message->due > world->real)
			world->real = message->due;
		acquirer_deliver(world, message);
	}
	world->real = real;
}

/* A time at which a rule changes its mind, by the server's clock, or unset. */
static int64_t
boundary(const World *world, Random *random)
{
	const Row  *row = store_committed(&world->store, (int) random_below(random, (uint32_t) world->config.keys));
	const RecordFacts *facts = &row->facts;

	if (!row->present)
		return RECORD_TIME_UNSET;
	switch (random_below(random, 7))
	{
		case 0:
			return facts->response_expires_at;
		case 1:
			return facts->expires_at;
		case 2:
			return facts->call_deadline;
		case 3:
			return is_set(facts->call_deadline) ? facts->call_deadline + world->config.grace : RECORD_TIME_UNSET;
		case 4:
			return is_set(facts->dedup_until) ? facts->dedup_until -
				(random_chance(random, 500) ? world->config.timeout : 0) : RECORD_TIME_UNSET;
		default:
			return facts->lease_expires_at;
	}
}

/* The clock moves: a little, to where a rule changes its mind, or far. */
void
world_move_clock(World *world, Random *random)
{
	uint32_t	luck = random_below(random, 100);
	int64_t		real = world->real;

	if (luck < 50)
		real += random_between(random, 0, 2) * TICK;
	else if (luck < 85)
	{
		int64_t		time = boundary(world, random);

		if (is_set(time))
			time += random_between(random, -1, 1) - world->offset;
		if (time > real)
			real = time;
	}
	else if (luck < 90)
		real += random_between(random, 5, 80) * TICK;
	else if (!world->calm && world->config.jitter > 0)
		world->offset = random_between(random, -(int) world->config.jitter, (int) world->config.jitter);
	TRACE(world, "the clock is moved to %.2f, the server's to %.2f", ticks(real), ticks(real + world->offset));
	advance(world, real);
}

/* In ticks. */
double
world_time(const World *world)
{
	return ticks(world->real);
}

/* Whether nobody is in the middle of something. */
bool
world_idle(const World *world)
{
	for (int i = 0; i < world->config.workers; i++)
		if (world->workers[i].pc != PC_IDLE)
			return false;
	for (int i = 0; i < MAX_PREPARED; i++)
		if (world->prepared[i].tx != NO_TX)
			return false;
	return world->sweep.pc == 0 && world->operator.pc == 0;
}
