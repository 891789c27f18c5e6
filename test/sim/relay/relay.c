/*-------------------------------------------------------------------------
 *
 * relay.c
 *		The simulator of the relay: who moves, what comes to an end, what is counted.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <inttypes.h>
#include <stdio.h>

/* so often it is looked whether all has come to an end */
#define LOOK_EVERY	16

/* who moves, besides the writers */
enum
{
	ACTOR_WORKER = MAX_WRITERS,
	ACTOR_LIBRARY,
	ACTOR_BROKER,
	ACTOR_CLOCK,
	ACTOR_TROUBLE,
	ACTOR_OPERATOR,
	ACTOR_PREPARED,
	ACTOR_KILL,
	ACTOR_CRASH
};

static World the_world;
static int64_t rows;
static int64_t stored;
static int64_t repeats;

static const Fault faults[] = {{"none", "", ""}, FAULT_LIST(FAULT_ROW) {0}};
static const char *const invariants[] = {"none", INVARIANT_LIST(INVARIANT_TEXT) NULL};

const Simulator simulator = {
	.name = "relay",
	.what = "the relay",
	.faults = faults,
	.fault = &faults[FAULT],
	.invariants = invariants,
	.least_steps = 200,
	.most_steps = 3000,
	.calm_steps = 1000000,
	.world = &the_world,
	.life = &the_world.life
};

uint8_t
world_draw_actor(const World *world, Mode mode, Random *random)
{
	const Config *config = &world->config;
	int			luck = (int) random_below(random, 1000);

	if (mode == MODE_FAULTS)
	{
		if ((luck -= config->kill) < 0)
			return random_chance(random, 800) ? ACTOR_KILL : ACTOR_CRASH;
		if ((luck -= config->trouble) < 0)
			return ACTOR_TROUBLE;
	}
	else if ((luck -= 20) < 0)
		return ACTOR_TROUBLE;
	if ((luck -= mode == MODE_CLOSING ? 50 : mode == MODE_CALM ? 0 : config->operator) < 0)
		return ACTOR_OPERATOR;
	if ((luck -= 15) < 0)
		return ACTOR_PREPARED;
	if ((luck -= 70) < 0)
		return ACTOR_CLOCK;
	if ((luck -= 170) < 0)
		return ACTOR_LIBRARY;
	if ((luck -= 120) < 0)
		return ACTOR_BROKER;
	if ((luck -= mode == MODE_FAULTS ? 200 : 60) < 0)
		return (uint8_t) random_below(random, (uint32_t) config->writers);
	return ACTOR_WORKER;
}

void
world_step(World *world, Mode mode, uint8_t actor, Random *random)
{
	world->calm = mode != MODE_FAULTS;
	switch (actor)
	{
		case ACTOR_WORKER:
			worker_step(world, random);
			break;
		case ACTOR_LIBRARY:
			library_step(world, random);
			break;
		case ACTOR_BROKER:
			broker_step(world, random);
			break;
		case ACTOR_CLOCK:
			world_move_clock(world, random);
			break;
		case ACTOR_TROUBLE:
			trouble_step(world, random);
			break;
		case ACTOR_OPERATOR:
			operator_step(world, random);
			break;
		case ACTOR_PREPARED:
			prepared_step(world, random);
			break;
		case ACTOR_KILL:
			worker_kill(world);
			break;
		case ACTOR_CRASH:
			server_crash(world);
			break;
		default:
			writer_step(world, actor, random);
	}
	check_end(world);
}

/*
 * Brokers, topics and networks are repaired, no row is written and no statement
 * fails.  Each committed row has to be published or parked; then, in the closing
 * mode, an operator sees to the parked ones, and all have to be published.
 */
Mode
world_next_mode(World *world, Mode mode)
{
	/* with room for few keys, those that are held may keep out others */
	if (mode == MODE_FAULTS)
		return world->config.max_keys < RELAY_KEYS ? MODE_CLOSING : MODE_CALM;
	if (world->life.step % LOOK_EVERY != 0 || !store_idle(world) || count_left(world, mode == MODE_CLOSING) > 0)
		return mode;
	if (mode == MODE_CLOSING)
		return MODE_OVER;
	TRACE(world, "now an operator sees to what is parked");
	return MODE_CLOSING;
}

void
world_unfinished(World *world, Mode mode)
{
	for (int r = 0; r < world->nrows && mode == MODE_CALM; r++)
		if ((world->row[r].poison || world->row[r].broken) && !is_settled(world, &world->row[r]))
			broke(world, INVARIANT_settled, "row %d is neither published nor parked", r);
	for (int r = 0; r < world->nrows; r++)
		if (world->row[r].visible_at > 0 && !world->row[r].deleted && !world->row[r].published &&
			(mode == MODE_CLOSING || !is_settled(world, &world->row[r])))
			broke(world, INVARIANT_all_published, "row %d is not published", r);
	broke(world, INVARIANT_all_published, "somebody never gets done");
}

void
tally_add(const World *world)
{
	rows += world->nrows;
	stored += world->history;
	repeats += world->repeats;
}

void
tally_print(void)
{
	printf("%" PRId64 " rows, %" PRId64 " records of which %" PRId64 " repeats", rows, stored, repeats);
}

bool
tally_complete(int64_t steps)
{
	(void) steps;
	return true;
}
