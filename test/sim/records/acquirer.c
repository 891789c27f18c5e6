/*-------------------------------------------------------------------------
 *
 * acquirer.c
 *		The far side: calls on their way, a memory that ends, answers that are late
 *		or never come.
 *
 * It honours a key for as long as it says, counted from the first call that
 * reached it, and as much longer as calls are on their way and clocks are off.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

/* Draws of a message, made when it leaves so that steps stay independent. */
enum
{
	LUCK_DECLINE = 0,
	LUCK_HANG = 10,
	LUCK_LATE = 20,
	LUCK_WAY = 30,
	LUCK_LATENESS = 40
};

static Message *
free_message(World *world)
{
	for (int i = 0; i < MAX_MESSAGES; i++)
		if (!world->messages[i].used)
			return &world->messages[i];
	return NULL;
}

/* Sends a worker's call; false: not now. */
bool
acquirer_send(World *world, Worker *worker, Random *random)
{
	Message    *message = free_message(world);

	if (message == NULL)
		return false;
	check_leaves(world, worker);
	*message = (Message) {
		.used = true,
		.due = world->real + random_below(random, (uint32_t) world->config.transit + 1),
		.record = worker->record,
		.worker = (int) (worker - world->workers),
		.job = worker->job,
		.luck = random_next(random),
	};
	return true;
}

/* Whether something happens to a message, so many times of a thousand. */
static bool
happens(const Message *message, int what, int per_mille)
{
	return (int) (((message->luck >> what) & 1023) * 1000 / 1024) < per_mille;
}

static Answer
answer_to(World *world, const Message *message)
{
	Witness    *record = &world->records[message->record];
	const Config *config = &world->config;
	int64_t		window = config->window[record->key];

	if (window > 0 && record->known &&
		(FAULT != FAULT_new_call_key || record->known_job == message->job * MAX_WORKERS + message->worker) &&
		world->real < record->known_since + window + 2 * config->jitter + config->transit)
	{
		SEEN(deduplicated);
		TRACE(world, "the acquirer knows record %d", message->record);
		return record->remembered;
	}
	record->known = true;
	record->known_since = world->real;
	record->known_job = message->job * MAX_WORKERS + message->worker;
	if (happens(message, LUCK_DECLINE, config->decline))
		record->remembered = ANSWER_DECLINED;
	else
	{
		record->remembered = ANSWER_APPROVED;
		record->captures++;
		check_capture(world, message->record);
	}
	TRACE(world, "the acquirer %s record %d",
		  record->remembered == ANSWER_APPROVED ? "captures" : "declines", message->record);
	return record->remembered;
}

/* A call reaches the acquirer, and the answer goes its way. */
static void
receive(World *world, Message *message)
{
	const Config *config = &world->config;
	int64_t		way = (int64_t) ((message->luck >> LUCK_WAY) & 3) * TICK;

	message->answer = answer_to(world, message);
	if (!world->calm && happens(message, LUCK_HANG, config->hang))
	{
		SEEN(answer_lost);
		TRACE(world, "its answer is lost");
		message->used = false;
		return;
	}
	if (!world->calm && happens(message, LUCK_LATE, config->late))
		way += (int64_t) ((message->luck >> LUCK_LATENESS) & 63) * TICK;
	message->is_answer = true;
	message->due = world->real + way;
}

/* A message arrives. */
void
acquirer_deliver(World *world, Message *message)
{
	if (!message->is_answer)
	{
		receive(world, message);
		return;
	}
	message->used = false;
	if (world->workers[message->worker].job != message->job)
		SEEN(answer_stray);
	else
	{
		world->workers[message->worker].answer = message->answer;
		TRACE(world, "worker %d has its answer: %s", message->worker,
			  message->answer == ANSWER_APPROVED ? "approved" : "declined");
	}
}
