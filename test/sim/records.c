/*-------------------------------------------------------------------------
 *
 * records.c
 *		Simulates idempotency records: episode after episode, from one seed.
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

/* a run of so many steps has to see all that can happen */
#define ENOUGH_STEPS	INT64_C(20000000)

typedef struct Options
{
	uint64_t	seed;
	int64_t		steps;			/* at least so many; 0: no bound */
	double		seconds;
	const char *invariant;		/* the only one to look at; NULL: all */
	bool		verbose;
} Options;

void
trace_line(World *world, const char *format,...)
{
	va_list		args;

	printf("  %5d  %8.2f  ", world->step, ticks(world->real));
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

static double
clock_seconds(void)
{
	struct timespec now;

	timespec_get(&now, TIME_UTC);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

static void
usage(FILE *to)
{
	fputs("Usage: records [--seed N] [--steps N] [--seconds N] [--invariant NAME] [--verbose]\n"
		  "               [--faults] [--invariants]\n"
		  "\n"
		  "Simulates idempotency records, for so many steps or seconds (60).\n"
		  "\n"
		  "  --seed N     a number of 64 bits from which all follows; by default, from the clock\n"
		  "  --steps N    ends after so many steps, or with the episode in which they are reached\n"
		  "  --seconds N  ends after so many seconds\n"
		  "  --invariant NAME  looks at this one only; an episode that breaks another is passed over\n"
		  "  --verbose    prints every step of the first episode\n"
		  "  --faults     lists the deliberate faults that a build may have, and what finds them\n"
		  "  --invariants lists what has to hold\n", to);
}

static void
list_faults(void)
{
#define FAULT_PRINT(name, invariant, text) printf("%s\t%s\t%s\n", #name, invariant, text);
	FAULT_LIST(FAULT_PRINT)
#undef FAULT_PRINT
}

static void
list_invariants(void)
{
#define INVARIANT_PRINT(name, text) puts(text);
	INVARIANT_LIST(INVARIANT_PRINT)
#undef INVARIANT_PRINT
}

static const char *
fault_name(void)
{
	static const char *const names[] = {
		"none",
#define FAULT_NAME(name, invariant, text) #name,
		FAULT_LIST(FAULT_NAME)
#undef FAULT_NAME
	};

	return names[FAULT];
}

/* A number given as an argument. */
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
	fprintf(stderr, "records: %s needs a number\n", name);
	exit(2);
}

static void
read_options(int argc, char **argv, Options *options)
{
	struct timespec now;

	timespec_get(&now, TIME_UTC);
	options->seed = random_next(&(Random) {(uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec});
	options->steps = 0;
	options->seconds = 0;
	options->invariant = NULL;
	options->verbose = false;
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
			options->invariant = value, i++;
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

/* Says what broke, with as few steps as it takes. */
static void
report(Episode *episode, World *world)
{
	const char *invariant = invariant_name(world->broken);
	int			nsteps = world->step;

	printf("BROKEN: %s: %s\n", invariant, world->what);
	fflush(stdout);
	episode_shrink(episode, world);
	printf("%d steps, of which %d are enough:\n", nsteps, episode->nsteps);
	episode_run(episode, world, true);
	if (world->broken == HOLDS)
	{
		world->traced = false;
		episode_end(episode, world);
	}
	printf("BROKEN: %s: %s\n", invariant, world->what);
	printf("again: records --seed 0x%" PRIx64 " --steps 1\n", episode->seed);
}

int
main(int argc, char **argv)
{
	static World world;
	static Episode episode;
	Options		options;
	Random		seeds;
	uint64_t	seed;
	double		start = clock_seconds();
	double		elapsed;
	int64_t		steps = 0;
	int64_t		episodes = 0;
	int64_t		records = 0;

	read_options(argc, argv, &options);
	printf("seed 0x%" PRIx64 ", fault %s\n", options.seed, fault_name());
	fflush(stdout);

	seeds.state = options.seed;
	seed = options.seed;
	do
	{
		episode_draw(&episode, seed);
		episode_run(&episode, &world, options.verbose && episodes == 0);
		if (world.broken == HOLDS)
			episode_end(&episode, &world);
		steps += world.step;
		episodes++;
		records += world.nrecords;
		if (world.broken != HOLDS &&
			(options.invariant == NULL || strcmp(options.invariant, invariant_name(world.broken)) == 0))
		{
			report(&episode, &world);
			return 1;
		}
		seed = random_next(&seeds);
		elapsed = clock_seconds() - start;
	} while ((options.steps == 0 || steps < options.steps) &&
			 (options.seconds == 0 || elapsed < options.seconds));

	printf("%" PRId64 " steps, %" PRId64 " episodes, %" PRId64 " records, %.1f s, %.0f steps/s, all invariants hold\n",
		   steps, episodes, records, elapsed, (double) steps / (elapsed > 0 ? elapsed : 1));
	return seen_report(steps >= ENOUGH_STEPS) > 0 && steps >= ENOUGH_STEPS ? 1 : 0;
}
