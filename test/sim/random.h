/*-------------------------------------------------------------------------
 *
 * random.h
 *		The simulator's only source of chance: a number, and what follows from it.
 *
 * The same state gives the same draws on every machine.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIM_RANDOM_H
#define SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Random
{
	uint64_t	state;
} Random;

/* A counter whose bits are mixed well: every state is a good start. */
static inline uint64_t
random_next(Random *random)
{
	uint64_t	bits = random->state += UINT64_C(0x9e3779b97f4a7c15);

	bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
	return bits ^ (bits >> 31);
}

/* 0 to n - 1 */
static inline uint32_t
random_below(Random *random, uint32_t n)
{
	return (uint32_t) (((random_next(random) >> 32) * n) >> 32);
}

/* low to high, both included */
static inline int64_t
random_between(Random *random, int low, int high)
{
	return low + (int64_t) random_below(random, (uint32_t) (high - low + 1));
}

static inline bool
random_chance(Random *random, uint32_t per_mille)
{
	return random_below(random, 1000) < per_mille;
}

#endif							/* SIM_RANDOM_H */
