/*-------------------------------------------------------------------------
 *
 * records.c
 *		The simulator of records: who moves, what comes to an end, what is counted.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* a run of so many steps has to see all that can happen */
#define ENOUGH_STEPS	INT64_C(20000000)

/* who moves, besides the workers */
enum
{
	ACTOR_CLOCK = MAX_WORKERS,
	ACTOR_SWEEP,
	ACTOR_OPERATOR,
	ACTOR_PREPARED,
	ACTOR_CRASH
};

static World the_world;
static int64_t records;

static const Fault faults[] = {{"none", "", ""}, FAULT_LIST(FAULT_ROW) {0}};
static const char *const invariants[] = {"none", INVARIANT_LIST(INVARIANT_TEXT) NULL};

const Simulator simulator = {
	.name = "records",
	.what = "idempotency records",
	.faults = faults,
	.fault = &faults[FAULT],
	.invariants = invariants,
	.least_steps = 100,
	.most_steps = 2000,
	.calm_steps = 50000,
	.world = &the_world,
	.life = &the_world.life
};

uint8_t
world_draw_actor(const World *world, Mode mode, Random *random)
{
	const Config *config = &world->config;
	int			luck = (int) random_below(random, 1000);
	int			worker;

	if ((luck -= config->clock) < 0)
		return ACTOR_CLOCK;
	if ((luck -= 60) < 0)
		return ACTOR_SWEEP;
	if ((luck -= 40) < 0)
		return ACTOR_OPERATOR;
	if ((luck -= 30) < 0)
		return ACTOR_PREPARED;
	if (mode == MODE_FAULTS && (luck -= config->crash) < 0)
		return ACTOR_CRASH;
	worker = (int) random_below(random, (uint32_t) config->workers);
	if (worker == 0 && mode == MODE_FAULTS && random_chance(random, (uint32_t) config->stall))
		worker = 1;				/* the slow one misses its turn */
	return (uint8_t) worker;
}

/* In the closing mode clients use no new keys. */
void
world_step(World *world, Mode mode, uint8_t actor, Random *random)
{
	world->calm = mode != MODE_FAULTS;
	world->closed = mode == MODE_CLOSING;
	switch (actor)
	{
		case ACTOR_CLOCK:
			world_move_clock(world, random);
			break;
		case ACTOR_SWEEP:
			sweep_step(world, random);
			break;
		case ACTOR_OPERATOR:
			operator_step(world, random);
			break;
		case ACTOR_PREPARED:
			prepared_step(world, random);
			break;
		case ACTOR_CRASH:
			server_crash(world);
			break;
		default:
			worker_step(world, actor, random);
	}
}

/* Whether each key is, or was, where the present mode wants it. */
static bool
all_arrived(World *world, Mode mode)
{
	bool		all = true;

	for (int key = 0; key < world->config.keys; key++)
	{
		const Row  *row = store_committed(&world->store, key);

		if (!row->present || (mode == MODE_CALM && row->facts.state == RECORD_COMPLETED))
			world->arrived[key] = true;
		all &= world->arrived[key];
	}
	return all;
}

/*
 * Clients retry or the sweeper of unfinished work goes on, the sweep and an
 * operator do their work.  Each record has to be answered; then, when no new key
 * is used, each has to expire.
 */
Mode
world_next_mode(World *world, Mode mode)
{
	if (mode != MODE_FAULTS)
	{
		if (!all_arrived(world, mode))
			return mode;
		if (mode == MODE_CLOSING)
			return world_idle(world) ? MODE_OVER : mode;
	}
	memset(world->arrived, 0, sizeof(world->arrived));
	return mode == MODE_FAULTS ? MODE_CALM : MODE_CLOSING;
}

void
world_unfinished(World *world, Mode mode)
{
	(void) mode;
	for (int key = 0; key < world->config.keys; key++)
		if (!world->arrived[key])
			broke(world, INVARIANT_liveness, "key %d stays %s", key,
				  state_name(store_committed(&world->store, key)->facts.state));
	broke(world, INVARIANT_liveness, "somebody never gets done");
}

void
tally_add(const World *world)
{
	records += world->nrecords;
}

void
tally_print(void)
{
	printf("%" PRId64 " records", records);
}

bool
tally_complete(int64_t steps)
{
	bool		enough = steps >= ENOUGH_STEPS;

	return seen_report(enough) == 0 || !enough;
}
