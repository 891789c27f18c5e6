/*-------------------------------------------------------------------------
 *
 * simulator.h
 *		What a simulator gives, and what it is given.
 *
 * A world is made from a seed and then moves by steps.  A step names an actor and
 * a number from which its draws follow, so that a list of steps can be run again,
 * also with some of them left out.  Each simulator defines a World of its own, with
 * a Life in it, and the functions world_... and tally_... below.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIM_SIMULATOR_H
#define SIM_SIMULATOR_H

#include "random.h"

/* what may happen in a step */
typedef enum Mode
{
	MODE_FAULTS,				/* anything */
	MODE_CALM,					/* no new faults: what was begun has to come to an end */
	MODE_CLOSING,				/* the second half of the calm end, as each world has it */
	MODE_OVER					/* nothing more: all has come to an end */
} Mode;

typedef struct World World;

/* what is told of any world */
typedef struct Life
{
	int			step;			/* so many were taken */
	bool		traced;
	int			only;			/* the invariant to look at; HOLDS: all */
	int			broken;			/* the first that broke */
	char		what[240];
} Life;

typedef struct Fault
{
	const char *name;
	const char *invariant;		/* that it is there to break */
	const char *text;
} Fault;

typedef struct Simulator
{
	const char *name;
	const char *what;			/* it simulates */
	const Fault *faults;		/* beginning with none, ended by one without a name */
	const Fault *fault;			/* that this build has */
	const char *const *invariants;	/* names, beginning with none, ended by NULL */

	/* steps of an episode: with faults, and those within which all has to come to an end then */
	int			least_steps;
	int			most_steps;
	int			calm_steps;

	World	   *world;
	Life	   *life;			/* the world's */
} Simulator;

/* lists of faults and invariants become enums and tables */
#define FAULT_ENUM(name, invariant, text)	FAULT_##name,
#define FAULT_ROW(name, invariant, text)	{#name, invariant, text},
#define INVARIANT_ENUM(name, text)			INVARIANT_##name,
#define INVARIANT_TEXT(name, text)			text,

#define HOLDS	0

#ifndef FAULT
#define FAULT FAULT_none
#endif

/* ---- what a simulator gives ---- */

extern const Simulator simulator;

extern void world_init(World *world, uint64_t seed);
extern uint8_t world_draw_actor(const World *world, Mode mode, Random *random);
extern void world_step(World *world, Mode mode, uint8_t actor, Random *random);

/* how the calm end goes on; in MODE_FAULTS: how it begins */
extern Mode world_next_mode(World *world, Mode mode);

/* it never came to an end: breaks an invariant that nothing else breaks */
extern void world_unfinished(World *world, Mode mode);

/* for a trace, in any unit */
extern double world_time(const World *world);

/* counts over all episodes: of one more; for the last line; and whether a run saw enough */
extern void tally_add(const World *world);
extern void tally_print(void);
extern bool tally_complete(int64_t steps);

/* ---- what it is given ---- */

/* an invariant is broken; the first one counts */
#define broke(world, ...)	life_broke(&(world)->life, __VA_ARGS__)

#define TRACE(world, ...) \
	(__builtin_expect((world)->life.traced, false) ? \
	 life_trace(&(world)->life, world_time(world), __VA_ARGS__) : (void) 0)

extern void life_broke(Life *life, int invariant, const char *format,...)
			__attribute__((format(printf, 3, 4)));
extern void life_trace(const Life *life, double time, const char *format,...)
			__attribute__((format(printf, 3, 4)));

#endif							/* SIM_SIMULATOR_H */
