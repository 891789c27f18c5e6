/*-------------------------------------------------------------------------
 *
 * episode.h
 *		A life of a world: steps with faults, then a calm end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIM_EPISODE_H
#define SIM_EPISODE_H

#include "world.h"

/* steps with faults, and those within which all has to come to an end then */
#define MAX_STEPS		2000
#define CALM_STEPS		50000

/* what may happen in a step */
typedef enum Mode
{
	MODE_FAULTS,				/* anything */
	MODE_CALM,					/* no new faults */
	MODE_CLOSED					/* nor new keys */
} Mode;

/* a step: who moves, and what its draws follow from */
typedef struct Step
{
	uint8_t		actor;
	uint8_t		mode;
	uint32_t	luck;
} Step;

typedef struct Episode
{
	uint64_t	seed;
	int			nsteps;
	Step		steps[MAX_STEPS + CALM_STEPS];
} Episode;

extern void episode_draw(Episode *episode, uint64_t seed);
extern void episode_run(const Episode *episode, World *world, bool traced);
extern void episode_end(Episode *episode, World *world);
extern void episode_shrink(Episode *episode, World *world);

#endif							/* SIM_EPISODE_H */
