/*-------------------------------------------------------------------------
 *
 * episode.c
 *		A life of a world: steps with faults, then a calm end; and, when one fails,
 *		a shorter one that fails in the same way.
 *
 *-------------------------------------------------------------------------
 */
#include "episode.h"

#include <string.h>

/* who moves, besides the workers */
enum
{
	ACTOR_CLOCK = MAX_WORKERS,
	ACTOR_SWEEP,
	ACTOR_OPERATOR,
	ACTOR_PREPARED,
	ACTOR_CRASH
};

static uint8_t
draw_actor(const Config *config, Mode mode, Random *random)
{
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

static Step
draw_step(const Config *config, Mode mode, Random *random)
{
	Step		step;

	step.actor = draw_actor(config, mode, random);
	step.mode = (uint8_t) mode;
	step.luck = (uint32_t) random_next(random);
	return step;
}

/* Draws the steps with faults that a seed stands for. */
void
episode_draw(Episode *episode, uint64_t seed)
{
	Random		random = {seed ^ UINT64_C(0x5bd1e995)};
	World		world;

	world_init(&world, seed);
	episode->seed = seed;
	episode->nsteps = (int) random_between(&random, 100, MAX_STEPS);
	for (int i = 0; i < episode->nsteps; i++)
		episode->steps[i] = draw_step(&world.config, MODE_FAULTS, &random);
}

static void
take_step(World *world, Step step)
{
	Random		random = {(uint64_t) step.luck << 16 | step.actor};

	world->step++;
	world->calm = step.mode != MODE_FAULTS;
	world->closed = step.mode == MODE_CLOSED;
	switch (step.actor)
	{
		case ACTOR_CLOCK:
			world_move_clock(world, &random);
			break;
		case ACTOR_SWEEP:
			sweep_step(world, &random);
			break;
		case ACTOR_OPERATOR:
			operator_step(world, &random);
			break;
		case ACTOR_PREPARED:
			prepared_step(world, &random);
			break;
		case ACTOR_CRASH:
			server_crash(world);
			break;
		default:
			worker_step(world, step.actor, &random);
	}
}

/* Runs the steps that an episode has so far.  What broke is in the world. */
void
episode_run(const Episode *episode, World *world, bool traced)
{
	world_init(world, episode->seed);
	world->traced = traced;
	for (int i = 0; i < episode->nsteps && world->broken == HOLDS; i++)
		take_step(world, episode->steps[i]);
}

/* Whether a key is where the present mode wants it. */
static bool
arrived(const World *world, Mode mode, int key)
{
	const Row  *row = store_committed(&world->store, key);

	return !row->present || (mode == MODE_CALM && row->facts.state == RECORD_COMPLETED);
}

/*
 * Adds the calm end: no more faults, clients retry or the sweeper of unfinished
 * work goes on, the sweep and an operator do their work.  Each record has to be answered; then, when no new key is used,
 * each has to expire.
 */
void
episode_end(Episode *episode, World *world)
{
	Random		random = {episode->seed ^ UINT64_C(0xca1)};
	int			keys = world->config.keys;
	bool		done[MAX_KEYS] = {0};
	int			left = keys;
	Mode		mode = MODE_CALM;

	TRACE(world, "no more faults");
	for (int i = 0; i < CALM_STEPS && world->broken == HOLDS; i++)
	{
		Step		step = draw_step(&world->config, mode, &random);

		episode->steps[episode->nsteps++] = step;
		take_step(world, step);
		for (int key = 0; key < keys; key++)
		{
			if (done[key] || !arrived(world, mode, key))
				continue;
			done[key] = true;
			left--;
		}
		if (left > 0)
			continue;
		if (mode == MODE_CLOSED && world_idle(world))
			return;
		if (mode == MODE_CALM)
		{
			mode = MODE_CLOSED;
			memset(done, 0, sizeof(done));
			left = keys;
		}
	}
	for (int key = 0; key < keys; key++)
		if (!done[key])
			broke(world, INVARIANT_liveness, "key %d stays %s", key,
				  state_name(store_committed(&world->store, key)->facts.state));
	broke(world, INVARIANT_liveness, "somebody never gets done");
}

/* The steps of an episode but for some. */
static void
leave_out(const Episode *episode, int from, int count, Episode *shorter)
{
	shorter->seed = episode->seed;
	shorter->nsteps = episode->nsteps - count;
	memcpy(shorter->steps, episode->steps, sizeof(Step) * (size_t) from);
	memcpy(shorter->steps + from, episode->steps + from + count,
		   sizeof(Step) * (size_t) (episode->nsteps - from - count));
}

/*
 * Whether an episode breaks an invariant.  For liveness, the calm end is added
 * each time anew, and taken off.
 */
static bool
breaks(Episode *episode, World *world, Invariant invariant)
{
	int			nsteps = episode->nsteps;

	episode_run(episode, world, false);
	if (invariant == INVARIANT_liveness && world->broken == HOLDS)
	{
		episode_end(episode, world);
		episode->nsteps = nsteps;
	}
	return world->broken == invariant;
}

/* Leaves out every step, and stretch of steps, that the failure does not need. */
void
episode_shrink(Episode *episode, World *world)
{
	static Episode shorter;
	Invariant	invariant = world->broken;

	if (invariant == INVARIANT_liveness)
		while (episode->nsteps > 0 && episode->steps[episode->nsteps - 1].mode != MODE_FAULTS)
			episode->nsteps--;
	else if (world->step < episode->nsteps)
		episode->nsteps = world->step;
	for (int pass = 0, before = -1; pass < 4 && episode->nsteps != before; pass++)
	{
		before = episode->nsteps;
		for (int count = (before + 1) / 2; count > 0; count /= 2)
			for (int from = 0; from + count <= episode->nsteps;)
			{
				leave_out(episode, from, count, &shorter);
				if (breaks(&shorter, world, invariant))
					leave_out(&shorter, shorter.nsteps, 0, episode);
				else
					from += count;
			}
	}
}
