/*-------------------------------------------------------------------------
 *
 * episode.c
 *		A life of a world: steps with faults, then a calm end; and, when one fails,
 *		a shorter one that fails in the same way.
 *
 *-------------------------------------------------------------------------
 */
#include "episode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* so often it is tried to leave out every step */
#define PASSES	4

/* An episode without steps, and room for as many as there can be. */
Episode
episode_make(void)
{
	Episode		episode = {0};

	episode.steps = malloc(sizeof(Step) * (size_t) (simulator.most_steps + simulator.calm_steps));
	if (episode.steps == NULL)
	{
		fprintf(stderr, "%s: out of memory\n", simulator.name);
		exit(2);
	}
	return episode;
}

static Step
draw_step(Mode mode, Random *random)
{
	Step		step;

	step.actor = world_draw_actor(simulator.world, mode, random);
	step.mode = (uint8_t) mode;
	step.luck = (uint32_t) random_next(random);
	return step;
}

static void
take_step(Step step)
{
	Random		random = {(uint64_t) step.luck << 16 | step.actor};

	simulator.life->step++;
	world_step(simulator.world, (Mode) step.mode, step.actor, &random);
}

/* Makes the world of an episode. */
static void
begin(const Episode *episode, bool traced)
{
	int			only = simulator.life->only;

	world_init(simulator.world, episode->seed);
	*simulator.life = (Life) {.traced = traced,.only = only};
}

/* Takes the steps that an episode has so far. */
static void
take_steps(const Episode *episode)
{
	for (int i = 0; i < episode->nsteps && simulator.life->broken == HOLDS; i++)
		take_step(episode->steps[i]);
}

/* Adds the calm end: all that was begun has to come to an end. */
static void
add_end(Episode *episode)
{
	Random		random = {episode->seed ^ UINT64_C(0xca1)};
	Mode		mode = world_next_mode(simulator.world, MODE_FAULTS);

	if (simulator.life->traced)
		life_trace(simulator.life, world_time(simulator.world), "no more faults");
	for (int i = 0; i < simulator.calm_steps; i++)
	{
		Step		step = draw_step(mode, &random);

		episode->steps[episode->nsteps++] = step;
		take_step(step);
		if (simulator.life->broken != HOLDS)
			return;
		mode = world_next_mode(simulator.world, mode);
		if (mode == MODE_OVER)
			return;
	}
	episode->unfinished = true;
	world_unfinished(simulator.world, mode);
}

/* Runs the episode that a seed stands for.  What broke is in the world's life. */
void
episode_run(Episode *episode, uint64_t seed, bool traced)
{
	Random		random = {seed ^ UINT64_C(0x5bd1e995)};

	episode->seed = seed;
	episode->unfinished = false;
	begin(episode, traced);
	episode->nsteps = (int) random_between(&random, simulator.least_steps, simulator.most_steps);
	for (int i = 0; i < episode->nsteps; i++)
		episode->steps[i] = draw_step(MODE_FAULTS, &random);
	take_steps(episode);
	if (simulator.life->broken == HOLDS)
		add_end(episode);
}

/*
 * Runs the steps of an episode again.  Where its failure is that it never came to
 * an end, the calm end is added each time anew, and taken off.
 */
void
episode_repeat(Episode *episode, bool traced, bool end_traced)
{
	int			nsteps = episode->nsteps;

	begin(episode, traced);
	take_steps(episode);
	if (!episode->unfinished || simulator.life->broken != HOLDS)
		return;
	simulator.life->traced = end_traced;
	add_end(episode);
	episode->nsteps = nsteps;
}

/* The steps of an episode but for some. */
static void
leave_out(const Episode *episode, int from, int count, Episode *shorter)
{
	shorter->seed = episode->seed;
	shorter->unfinished = episode->unfinished;
	shorter->nsteps = episode->nsteps - count;
	memcpy(shorter->steps, episode->steps, sizeof(Step) * (size_t) from);
	memcpy(shorter->steps + from, episode->steps + from + count,
		   sizeof(Step) * (size_t) (episode->nsteps - from - count));
}

/* Leaves out every step, and stretch of steps, that the failure does not need. */
void
episode_shrink(Episode *episode)
{
	Episode		shorter = episode_make();
	int			invariant = simulator.life->broken;

	if (episode->unfinished)
		while (episode->nsteps > 0 && episode->steps[episode->nsteps - 1].mode != MODE_FAULTS)
			episode->nsteps--;
	else if (simulator.life->step < episode->nsteps)
		episode->nsteps = simulator.life->step;
	for (int pass = 0, before = -1; pass < PASSES && episode->nsteps != before; pass++)
	{
		before = episode->nsteps;
		for (int count = (before + 1) / 2; count > 0; count /= 2)
			for (int from = 0; from + count <= episode->nsteps;)
			{
				leave_out(episode, from, count, &shorter);
				episode_repeat(&shorter, false, false);
				if (simulator.life->broken == invariant)
					leave_out(&shorter, shorter.nsteps, 0, episode);
				else
					from += count;
			}
	}
	free(shorter.steps);
}
