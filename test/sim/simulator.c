/*-------------------------------------------------------------------------
 *
 * simulator.c
 *		Simulates episode after episode, from one seed.
 *
 * See README.md.  Exits with 1 when an invariant broke, or when a long run missed
 * something that can happen.
 *
 *-------------------------------------------------------------------------
 */
#include "episode.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Options
{
	uint64_t	seed;
	int64_t		steps;			/* at least so many; 0: no bound */
	double		seconds;
	bool		verbose;
} Options;

/* ---- a world's life ---- */

void
life_broke(Life *life, int invariant, const char *format,...)
{
	va_list		args;

	if (life->broken != HOLDS || (life->only != HOLDS && invariant != life->only))
		return;
	life->broken = invariant;
	va_start(args, format);
	vsnprintf(life->what, sizeof(life->what), format, args);
	va_end(args);
}

void
life_trace(const Life *life, double time, const char *format,...)
{
	va_list		args;

	printf("  %5d  %10.3f  ", life->step, time);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

/* ---- options ---- */

static void
usage(FILE *to)
{
	fprintf(to, "Usage: %s [--seed N] [--steps N] [--seconds N] [--invariant NAME] [--verbose]\n"
			"       %s --faults | --invariants\n"
			"\n"
			"Simulates %s, for so many steps or seconds (60).\n"
			"\n"
			"  --seed N     a number of 64 bits from which all follows; by default, from the clock\n"
			"  --steps N    ends after so many steps, or with the episode in which they are reached\n"
			"  --seconds N  ends after so many seconds\n"
			"  --invariant NAME  looks at this one only\n"
			"  --verbose    prints every step of the first episode\n"
			"  --faults     lists the deliberate faults that a build may have, and what finds them\n"
			"  --invariants lists what has to hold\n",
			simulator.name, simulator.name, simulator.what);
}

static void
list_faults(void)
{
	for (const Fault *fault = simulator.faults + 1; fault->name != NULL; fault++)
		printf("%s\t%s\t%s\n", fault->name, fault->invariant, fault->text);
}

static void
list_invariants(void)
{
	for (const char *const *name = simulator.invariants + 1; *name != NULL; name++)
		puts(*name);
}

static int
invariant_arg(const char *name)
{
	for (int i = 1; simulator.invariants[i] != NULL; i++)
		if (strcmp(name, simulator.invariants[i]) == 0)
			return i;
	fprintf(stderr, "%s: there is no invariant %s\n", simulator.name, name);
	exit(2);
}

static uint64_t
number_arg(const char *name, const char *value)
{
	char	   *end;
	uint64_t	number;

	if (value != NULL)
	{
		number = strtoull(value, &end, 0);
		if (*value >= '0' && *value <= '9' && *end == '\0')
			return number;
	}
	fprintf(stderr, "%s: %s needs a number\n", simulator.name, name);
	exit(2);
}

static void
read_options(int argc, char **argv, Options *options)
{
	struct timespec now;

	timespec_get(&now, TIME_UTC);
	*options = (Options) {.seed = random_next(&(Random) {(uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec})};
	for (int i = 1; i < argc; i++)
	{
		const char *name = argv[i];
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(name, "--seed") == 0)
			options->seed = number_arg(name, value), i++;
		else if (strcmp(name, "--steps") == 0)
			options->steps = (int64_t) number_arg(name, value), i++;
		else if (strcmp(name, "--seconds") == 0)
			options->seconds = (double) number_arg(name, value), i++;
		else if (strcmp(name, "--invariant") == 0 && value != NULL)
			simulator.life->only = invariant_arg(value), i++;
		else if (strcmp(name, "--verbose") == 0)
			options->verbose = true;
		else if (strcmp(name, "--faults") == 0)
		{
			list_faults();
			exit(0);
		}
		else if (strcmp(name, "--invariants") == 0)
		{
			list_invariants();
			exit(0);
		}
		else
		{
			usage(strcmp(name, "--help") == 0 ? stdout : stderr);
			exit(strcmp(name, "--help") == 0 ? 0 : 2);
		}
	}
	if (options->steps == 0 && options->seconds == 0)
		options->seconds = 60;
}

/* ---- a run ---- */

static double
clock_seconds(void)
{
	struct timespec now;

	timespec_get(&now, TIME_UTC);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* Says what broke, with as few steps as it takes. */
static void
report(Episode *episode, bool verbose)
{
	const Life *life = simulator.life;
	const char *invariant = simulator.invariants[life->broken];
	int			nsteps = life->step;

	printf("BROKEN: %s: %s\n", invariant, life->what);
	fflush(stdout);
	episode_shrink(episode);
	printf("%d steps, of which %d are enough:\n", nsteps, episode->nsteps);
	episode_repeat(episode, true, verbose);
	printf("BROKEN: %s: %s\n", invariant, life->what);
	printf("again: %s --seed 0x%" PRIx64 " --steps 1\n", simulator.name, episode->seed);
}

int
main(int argc, char **argv)
{
	Episode		episode = episode_make();
	Options		options;
	Random		seeds;
	uint64_t	seed;
	double		start = clock_seconds();
	double		elapsed;
	int64_t		steps = 0;
	int64_t		episodes = 0;

	read_options(argc, argv, &options);
	printf("seed 0x%" PRIx64 ", fault %s\n", options.seed, simulator.fault->name);
	fflush(stdout);

	seeds.state = options.seed;
	seed = options.seed;
	do
	{
		episode_run(&episode, seed, options.verbose && episodes == 0);
		steps += simulator.life->step;
		episodes++;
		tally_add(simulator.world);
		if (simulator.life->broken != HOLDS)
		{
			report(&episode, options.verbose);
			return 1;
		}
		seed = random_next(&seeds);
		elapsed = clock_seconds() - start;
	} while ((options.steps == 0 || steps < options.steps) &&
			 (options.seconds == 0 || elapsed < options.seconds));

	printf("%" PRId64 " steps, %" PRId64 " episodes, ", steps, episodes);
	tally_print();
	printf(", %.1f s, %.0f steps/s, all invariants hold\n", elapsed, (double) steps / (elapsed > 0 ? elapsed : 1));
	return tally_complete(steps) ? 0 : 1;
}
