/*-------------------------------------------------------------------------
 *
 * relay.c
 *		Simulates the relay: episode after episode, from one seed.
 *
 * See ../README.md.  Exits with 1 when an invariant broke.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* steps with faults, and those within which all has to come to an end then */
#define MAX_STEPS		3000
#define CALM_STEPS		1000000

/* what may happen in a step */
typedef enum Mode
{
	MODE_FAULTS,				/* anything */
	MODE_CALM,					/* no new rows, no new faults */
	MODE_REPAIR					/* and an operator sees to what is parked */
} Mode;

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

typedef struct Options
{
	uint64_t	seed;
	int64_t		steps;			/* at least so many; 0: no bound */
	double		seconds;
	Invariant	only;			/* to look at; HOLDS: all */
	bool		verbose;
} Options;

void
trace_line(World *world, const char *format,...)
{
	va_list		args;

	printf("  %5d  %10.3f  ", world->step, (double) world->now / SEC);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

/* ---- a world ---- */

static void
draw_config(Config *config, Random *random)
{
	config->writers = (int) random_between(random, 1, MAX_WRITERS);
	config->topics = (int) random_between(random, 1, MAX_TOPICS);
	for (int t = 0; t < config->topics; t++)
	{
		config->partitions[t] = (int) random_between(random, 1, MAX_PARTITIONS - 1);
		config->skip[t] = random_chance(random, 400);
		config->max_per_key[t] = random_chance(random, 600) ? 0 : (int) random_between(random, 1, 3);
		config->max_bytes[t] = random_chance(random, 600) ? 1000000 : (uint32_t) random_between(random, 600, 5000);
	}
	config->grow = random_chance(random, 100);
	config->forget = random_chance(random, 200);
	config->keys = (int) random_between(random, 1, MAX_KEYS);
	config->window = (int) random_between(random, 3, 60);
	config->max_keys = random_chance(random, 200) ? (int) random_between(random, 2, 8) : RELAY_KEYS;
	config->batch = (int) random_between(random, 1, 30);
	config->no_key = random_chance(random, 300) ? 200 : 0;
	config->poison = random_chance(random, 500) ? (int) random_between(random, 5, 100) : 0;
	config->big = random_chance(random, 300) ? (int) random_between(random, 5, 100) : 0;
	config->abort = random_chance(random, 500) ? 200 : 0;
	config->prepare = random_chance(random, 300) ? 100 : 0;
	config->kill = random_chance(random, 600) ? (int) random_between(random, 1, 8) : 0;
	config->trouble = random_chance(random, 600) ? (int) random_between(random, 5, 60) : 0;
	config->operator = random_chance(random, 500) ? 15 : 0;
	config->database = random_chance(random, 400) ? (int) random_between(random, 5, 100) : 0;
}

/* Makes the world of a seed. */
void
world_init(World *world, uint64_t seed, Invariant only)
{
	Random		random = {seed};

	memset((char *) world + offsetof(World, seed), 0, sizeof(*world) - offsetof(World, seed));
	world->seed = seed;
	world->only = only;
	draw_config(&world->config, &random);
	world->now = SEC;
	world->stamp = 1;
	world->next_seq = 1;
	for (int t = 0; t < world->config.topics; t++)
	{
		Topic	   *topic = &world->topic[t];

		topic->exists = topic->allowed = true;
		topic->partitions = world->config.partitions[t];
		topic->max_bytes = world->config.max_bytes[t];
		for (int p = 0; p < MAX_PARTITIONS; p++)
			topic->partition[p].leader = p % BROKERS;
	}
	world->broker_up[0] = world->broker_up[1] = true;
	world->replicas = true;
	world->stream.number = world->probe.number = -1;
	world->worker.phase = DEAD;
}

/* Time passes: a little, or until something is due. */
void
world_move_clock(World *world, Random *random)
{
	int64_t		due;

	if (random_chance(random, 700))
	{
		world->now += random_between(random, 1, 20) * MSEC;
		return;
	}
	if (world->worker.phase == DEAD)
		due = world->worker.starts_at;
	else
		due = relay_rules_wake_at(&world->rules, world->now);
	if (due > world->now && due != RELAY_NEVER && due - world->now < 3600 * SEC)
		world->now = due;
	else
		world->now += random_between(random, 1, 3000) * MSEC;
}

/* ---- an episode ---- */

static uint8_t
draw_actor(const Config *config, Mode mode, Random *random)
{
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
	if ((luck -= mode == MODE_REPAIR ? 50 : mode == MODE_CALM ? 0 : config->operator) < 0)
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

static Step
draw_step(const Config *config, Mode mode, Random *random)
{
	Step		step;

	step.actor = draw_actor(config, mode, random);
	step.mode = (uint8_t) mode;
	step.luck = (uint32_t) random_next(random);
	return step;
}

static void
episode_draw(Episode *episode, uint64_t seed)
{
	Random		random = {seed ^ UINT64_C(0x5bd1e995)};
	Random		config_random = {seed};
	Config		config = {0};

	draw_config(&config, &config_random);
	episode->seed = seed;
	episode->nsteps = (int) random_between(&random, 200, MAX_STEPS);
	for (int i = 0; i < episode->nsteps; i++)
		episode->steps[i] = draw_step(&config, MODE_FAULTS, &random);
}

static void
take_step(World *world, Step step)
{
	Random		random = {(uint64_t) step.luck << 16 | step.actor};

	world->step++;
	world->calm = step.mode != MODE_FAULTS;
	switch (step.actor)
	{
		case ACTOR_WORKER:
			worker_step(world, &random);
			break;
		case ACTOR_LIBRARY:
			library_step(world, &random);
			break;
		case ACTOR_BROKER:
			broker_step(world, &random);
			break;
		case ACTOR_CLOCK:
			world_move_clock(world, &random);
			break;
		case ACTOR_TROUBLE:
			trouble_step(world, &random);
			break;
		case ACTOR_OPERATOR:
			operator_step(world, &random);
			break;
		case ACTOR_PREPARED:
			prepared_step(world, &random);
			break;
		case ACTOR_KILL:
			worker_kill(world);
			break;
		case ACTOR_CRASH:
			server_crash(world);
			break;
		default:
			writer_step(world, step.actor, &random);
	}
	check_end(world);
}

/* Runs the steps that an episode has so far.  What broke is in the world. */
static void
episode_run(const Episode *episode, World *world, bool traced)
{
	world_init(world, episode->seed, world->only);
	world->traced = traced;
	for (int i = 0; i < episode->nsteps && world->broken == HOLDS; i++)
		take_step(world, episode->steps[i]);
}

/*
 * Adds the calm end: brokers, topics and networks are repaired, and no statement
 * fails.  Each committed row has to be published or parked; then an operator sees
 * to the parked ones, and all have to be published.
 */
static void
episode_end(Episode *episode, World *world)
{
	Random		random = {episode->seed ^ UINT64_C(0xca1)};
	/* with room for few keys, those that are held may keep out others */
	Mode		mode = world->config.max_keys < RELAY_KEYS ? MODE_REPAIR : MODE_CALM;

	TRACE(world, "no more faults");
	for (int i = 0; i < CALM_STEPS && world->broken == HOLDS; i++)
	{
		Step		step = draw_step(&world->config, mode, &random);

		episode->steps[episode->nsteps++] = step;
		take_step(world, step);
		if (i % 16 != 0 || !store_idle(world) || count_left(world, mode == MODE_REPAIR) > 0)
			continue;
		if (mode == MODE_REPAIR)
			return;
		TRACE(world, "now an operator sees to what is parked");
		mode = MODE_REPAIR;
	}
	for (int r = 0; r < world->nrows && mode == MODE_CALM; r++)
		if ((world->row[r].poison || world->row[r].broken) && !is_settled(world, &world->row[r]))
			broke(world, INVARIANT_settled, "row %d is neither published nor parked", r);
	for (int r = 0; r < world->nrows; r++)
		if (world->row[r].visible_at > 0 && !world->row[r].deleted && !world->row[r].published &&
			(mode == MODE_REPAIR || !is_settled(world, &world->row[r])))
			broke(world, INVARIANT_all_published, "row %d is not published", r);
	broke(world, INVARIANT_all_published, "somebody never gets done");
}

/* ---- shrinking ---- */

static void
leave_out(const Episode *episode, int from, int count, Episode *shorter)
{
	shorter->seed = episode->seed;
	shorter->nsteps = episode->nsteps - count;
	memcpy(shorter->steps, episode->steps, sizeof(Step) * (size_t) from);
	memcpy(shorter->steps + from, episode->steps + from + count,
		   sizeof(Step) * (size_t) (episode->nsteps - from - count));
}

static bool
needs_end(Invariant invariant)
{
	return invariant == INVARIANT_all_published || invariant == INVARIANT_settled;
}

/* Whether an episode breaks an invariant; the calm end is added, and taken off. */
static bool
breaks(Episode *episode, World *world, Invariant invariant)
{
	int			nsteps = episode->nsteps;

	episode_run(episode, world, false);
	if (needs_end(invariant) && world->broken == HOLDS)
	{
		episode_end(episode, world);
		episode->nsteps = nsteps;
	}
	return world->broken == invariant;
}

/* Leaves out every step, and stretch of steps, that the failure does not need. */
static void
episode_shrink(Episode *episode, World *world)
{
	static Episode shorter;
	Invariant	invariant = world->broken;

	if (needs_end(invariant))
		while (episode->nsteps > 0 && episode->steps[episode->nsteps - 1].mode != MODE_FAULTS)
			episode->nsteps--;
	else if (world->step < episode->nsteps)
		episode->nsteps = world->step;
	for (int pass = 0, before = -1; pass < 3 && episode->nsteps != before; pass++)
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

/* ---- the program ---- */

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
	fputs("Usage: relay [--seed N] [--steps N] [--seconds N] [--invariant NAME] [--verbose]\n"
		  "             [--faults] [--invariants]\n"
		  "\n"
		  "Simulates the relay, for so many steps or seconds (60).\n"
		  "\n"
		  "  --seed N     a number of 64 bits from which all follows; by default, from the clock\n"
		  "  --steps N    ends after so many steps, or with the episode in which they are reached\n"
		  "  --seconds N  ends after so many seconds\n"
		  "  --invariant NAME  looks at this one only\n"
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

static Invariant
invariant_of(const char *name)
{
	for (Invariant i = INVARIANT_no_ghost; i <= INVARIANT_counted; i++)
		if (strcmp(name, invariant_name(i)) == 0)
			return i;
	fprintf(stderr, "relay: there is no invariant %s\n", name);
	exit(2);
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
	fprintf(stderr, "relay: %s needs a number\n", name);
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
			options->only = invariant_of(value), i++;
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
		world->traced = getenv("SIM_TRACE_END") != NULL;
		episode_end(episode, world);
	}
	printf("BROKEN: %s: %s\n", invariant, world->what);
	printf("again: relay --seed 0x%" PRIx64 " --steps 1\n", episode->seed);
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
	int64_t		rows = 0;
	int64_t		stored = 0;
	int64_t		repeats = 0;

	read_options(argc, argv, &options);
	world.only = options.only;
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
		rows += world.nrows;
		stored += world.history;
		repeats += world.repeats;
		if (world.broken != HOLDS)
		{
			report(&episode, &world);
			return 1;
		}
		seed = random_next(&seeds);
		elapsed = clock_seconds() - start;
	} while ((options.steps == 0 || steps < options.steps) &&
			 (options.seconds == 0 || elapsed < options.seconds));

	printf("%" PRId64 " steps, %" PRId64 " episodes, %" PRId64 " rows, %" PRId64 " records of which %" PRId64
		   " repeats, %.1f s, %.0f steps/s, all invariants hold\n",
		   steps, episodes, rows, stored, repeats, elapsed, (double) steps / (elapsed > 0 ? elapsed : 1));
	return 0;
}
