/*-------------------------------------------------------------------------
 *
 * episode.h
 *		A life of a world: steps with faults, then a calm end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIM_EPISODE_H
#define SIM_EPISODE_H

#include "simulator.h"

/* who moves, and what its draws follow from */
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
	Step	   *steps;
	bool		unfinished;		/* what it broke is that it never came to an end */
} Episode;

extern Episode episode_make(void);
extern void episode_run(Episode *episode, uint64_t seed, bool traced);
extern void episode_repeat(Episode *episode, bool traced, bool end_traced);
extern void episode_shrink(Episode *episode);

#endif							/* SIM_EPISODE_H */
