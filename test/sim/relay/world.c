/*-------------------------------------------------------------------------
 *
 * world.c
 *		A world of the relay and its clock.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <stddef.h>
#include <string.h>

/* Lengths, faults and habits of an episode. */
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

/* Makes the world that a seed stands for. */
void
world_init(World *world, uint64_t seed)
{
	Random		random = {seed};

	memset((char *) world + offsetof(World, seed), 0, sizeof(*world) - offsetof(World, seed));
	world->seed = seed;
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

/* In seconds. */
double
world_time(const World *world)
{
	return (double) world->now / SEC;
}
