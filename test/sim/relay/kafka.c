/*-------------------------------------------------------------------------
 *
 * kafka.c
 *		Brokers, and a client library that works as librdkafka's idempotent
 *		producer does.
 *
 * A partition's queue is sent in batches, up to five requests at a time; a
 * broker takes a batch only if it begins with the sequence number that it
 * expects of this producer, or if it does not know the producer.  After a failure
 * that passes, the library waits until all requests of the partition are back
 * and sends the rest again.  What can't be tried again ends a stream (gapless),
 * and makes a probe begin a new epoch.  Requests of a producer that has been
 * closed may still arrive.  A producer may also hang, and send no more.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <string.h>

#define MAX_IN_FLIGHT	5
#define METADATA_WAIT	(30 * SEC)

/* The partition of a key. */
int
partition_of(int key, int partitions)
{
	return (key * 7 + 3) % partitions;
}

/* ---- the library ---- */

void
library_open(World *world, Producer *producer, bool alone, uint32_t batch_bytes)
{
	memset(producer, 0, sizeof(*producer));
	producer->open = true;
	producer->alone = alone;
	producer->number = ++world->producers;
	producer->batch_bytes = batch_bytes;
	TRACE(world, "%s %d is made, batches of %u bytes", alone ? "probe" : "stream", producer->number, batch_bytes);
}

void
library_close(World *world, Producer *producer)
{
	if (producer->open)
		world->ends++;
	producer->open = false;
}

/* Tells the worker something. */
void
library_report(World *world, Producer *producer, Report report)
{
	if (producer->nreports < MAX_REPORTS)
		producer->report[(producer->first_report + producer->nreports++) % MAX_REPORTS] = report;
	world->pipe = true;
}

bool
library_next(Producer *producer, Report *report)
{
	if (producer->nreports == 0)
		return false;
	*report = producer->report[producer->first_report];
	producer->first_report = (producer->first_report + 1) % MAX_REPORTS;
	producer->nreports--;
	return true;
}

static void
report_failure(World *world, Producer *producer, const Message *message, RelayClass class)
{
	library_report(world, producer, (Report) {.ticket = message->ticket,.class = class,.partition = -1,.limit_of = -1});
}

/* Puts a message in its place by sequence number. */
static void
enqueue(Queue *queue, Message message)
{
	int			at = queue->n++;

	while (at > 0 && queue->message[at - 1].sequence > message.sequence)
	{
		queue->message[at] = queue->message[at - 1];
		at--;
	}
	queue->message[at] = message;
}

static void
enqueue_new(World *world, Producer *producer, int topic, int partition, Message message)
{
	Queue	   *queue = &producer->queue[topic][partition];

	(void) world;
	message.sequence = queue->sequence++;
	message.number = ++queue->number;
	enqueue(queue, message);
}

/* Takes a row to be sent. */
Take
library_produce(World *world, Producer *producer, int r, int32_t partition,
				uint64_t ticket, RelayClass *class, Random *random)
{
	Row		   *row = &world->row[r];
	int			topic = row->topic;
	int			count = producer->partitions[topic];
	Message		message = {.ticket = ticket,.row = r,.partition = partition,.read_at = row->read_at};

	if (producer->fatal)
	{
		*class = RELAY_RETURNED;
		return NOT_SENT;
	}
	if (!world->calm && random_chance(random, 5))
		return QUEUE_FULL;
	if (producer->denied[topic])
	{
		*class = RELAY_TARGET;
		return NOT_SENT;
	}
	if (row->key < 0 && partition >= count && count > 0)
	{
		*class = RELAY_TARGET;	/* no such partition */
		return NOT_SENT;
	}
	if (count == 0)
	{
		if (producer->nunknown[topic] == 0)
			producer->unknown_since[topic] = world->now;
		producer->unknown[topic][producer->nunknown[topic]++] = message;
		return TAKEN;
	}
	enqueue_new(world, producer, topic,
				row->key >= 0 ? partition_of(row->key, count) :
				partition >= 0 ? partition : (int) random_below(random, (uint32_t) count), message);
	return TAKEN;
}

/* Gives rows back. */
void
library_purge(World *world, Producer *producer, bool in_flight_too)
{
	for (int t = 0; t < world->config.topics && !producer->hangs; t++)
	{
		for (int p = 0; p < MAX_PARTITIONS; p++)
		{
			Queue	   *queue = &producer->queue[t][p];

			for (int i = 0; i < queue->n; i++)
				report_failure(world, producer, &queue->message[i], RELAY_RETURNED);
			queue->n = 0;
		}
		for (int i = 0; i < producer->nunknown[t]; i++)
			report_failure(world, producer, &producer->unknown[t][i], RELAY_RETURNED);
		producer->nunknown[t] = 0;
	}
	for (int q = 0; in_flight_too && !producer->hangs && q < MAX_REQUESTS; q++)
	{
		Request    *request = &world->request[q];

		if (request->state == UNUSED || request->producer != producer->number || request->forgotten)
			continue;
		for (int i = 0; i < request->n; i++)
			report_failure(world, producer, &request->message[i], RELAY_RETURNED);
		request->forgotten = true;
		producer->queue[request->topic][request->partition].requests--;
	}
}

/* Learns what partitions a topic has. */
static void
refresh(World *world, Producer *producer, int t)
{
	Topic	   *topic = &world->topic[t];
	int			count = topic->exists ? topic->partitions : 0;

	if (!world->broker_up[0] && !world->broker_up[1])
		return;
	producer->denied[t] = topic->exists && !topic->allowed && producer->denied[t];
	if (count == 0)
	{
		/* what it had for the topic waits to see whether it comes back */
		if (producer->partitions[t] > 0)
			producer->unknown_since[t] = world->now;
		for (int p = 0; p < MAX_PARTITIONS; p++)
		{
			Queue	   *queue = &producer->queue[t][p];

			if (queue->requests > 0)
				return;
			for (int i = 0; i < queue->n; i++)
			{
				producer->unknown[t][producer->nunknown[t]] = queue->message[i];
				producer->unknown[t][producer->nunknown[t]++].batch = 0;
			}
			queue->n = 0;
		}
		producer->partitions[t] = 0;
		if (world->now - producer->unknown_since[t] < METADATA_WAIT)
			return;
		for (int i = 0; i < producer->nunknown[t]; i++)
			report_failure(world, producer, &producer->unknown[t][i], RELAY_TARGET);
		producer->nunknown[t] = 0;
		return;
	}
	if (producer->partitions[t] != count)
		TRACE(world, "producer %d: topic %d has %d partitions", producer->number, t, count);
	producer->partitions[t] = count;
	for (int i = 0; i < producer->nunknown[t]; i++)
	{
		Message    *message = &producer->unknown[t][i];
		int			key = world->row[message->row].key;

		enqueue_new(world, producer, t, key >= 0 ? partition_of(key, count) :
					message->partition >= 0 && message->partition < count ? message->partition : 0, *message);
	}
	producer->nunknown[t] = 0;
}

static Request *
free_request(World *world)
{
	for (int q = 0; q < MAX_REQUESTS; q++)
		if (world->request[q].state == UNUSED)
			return &world->request[q];
	return NULL;
}

static int
requests_of(const Producer *producer)
{
	int			n = 0;

	for (int t = 0; t < MAX_TOPICS; t++)
		for (int p = 0; p < MAX_PARTITIONS; p++)
			n += producer->queue[t][p].requests;
	return n;
}

/* Begins a new epoch: all that is left is numbered anew. */
static void
bump_epoch(World *world, Producer *producer)
{
	TRACE(world, "producer %d begins a new epoch", producer->number);
	producer->epoch++;
	producer->bump = false;
	for (int t = 0; t < MAX_TOPICS; t++)
		for (int p = 0; p < MAX_PARTITIONS; p++)
		{
			Queue	   *queue = &producer->queue[t][p];

			queue->sequence = 0;
			for (int i = 0; i < queue->n; i++)
			{
				queue->message[i].sequence = queue->sequence++;
				queue->message[i].batch = 0;
			}
		}
}

/* Sends a batch of a partition. */
static void
send_batch(World *world, Producer *producer, int t, int p, Random *random)
{
	Queue	   *queue = &producer->queue[t][p];
	Topic	   *topic = &world->topic[t];
	Request    *request = free_request(world);
	uint32_t	bytes = 0;
	int			most = producer->alone ? 1 : (int) random_between(random, 1, world->config.batch);

	if (request == NULL || producer->fatal || producer->bump || queue->n == 0 || queue->requests >= MAX_IN_FLIGHT)
		return;
	if ((queue->drain || queue->leader != topic->partition[p].leader) && queue->requests > 0)
		return;
	queue->drain = false;
	queue->leader = topic->partition[p].leader;
	*request = (Request) {.state = ON_ITS_WAY,.producer = producer->number,.epoch = producer->epoch,.topic = t,.partition = p};
	request->broker = topic->partition[p].leader;
	request->sequence = queue->message[0].sequence;
	request->order = ++world->requests;
	if (queue->message[0].batch != 0)
		most = MAX_BATCH;
	while (request->n < queue->n && request->n < most && request->n < MAX_BATCH &&
		   queue->message[request->n].batch == queue->message[0].batch)
	{
		bytes += world->row[queue->message[request->n].row].bytes;
		if (request->n > 0 && bytes > producer->batch_bytes)
			break;
		request->message[request->n] = queue->message[request->n];
		request->n++;
	}
	for (int i = 0; i < request->n && request->message[i].batch == 0; i++)
		request->message[i].batch = request->order;
	queue->n -= request->n;
	memmove(queue->message, queue->message + request->n, sizeof(Message) * (size_t) queue->n);
	queue->requests++;
	TRACE(world, "producer %d sends topic %d, partition %d, rows %d... (%d), from sequence %d", producer->number,
		  t, p, request->message[0].row, request->n, request->sequence);
}

/* The rows of a request are refused for good. */
static void
fail_request(World *world, Producer *producer, Request *request, RelayClass class)
{
	for (int i = 0; i < request->n; i++)
		report_failure(world, producer, &request->message[i], class);
	if (producer->alone || FAULT == FAULT_no_gapless)
		producer->bump = true;
	else
	{
		producer->fatal = true;
		library_report(world, producer, (Report) {.fatal = true,.limit_of = -1});
	}
}

static void
report_stored(World *world, Producer *producer, const Message *message, int partition, int64_t offset)
{
	library_report(world, producer, (Report) {.ticket = message->ticket,.stored = true,.partition = partition,
				   .offset = offset,.limit_of = -1});
}

/*
 * A request was stored.  If what was sent before it has no answer yet, the library
 * takes that for stored, too: a broker that knows the producer would have refused
 * this one otherwise.
 */
static void
take_stored(World *world, Producer *producer, Queue *queue, const Request *request)
{
	int			last = request->message[request->n - 1].number;
	int			n = 0;

	while (queue->stored < request->message[0].number - 1 && n < queue->n && queue->message[n].number <= last)
		report_stored(world, producer, &queue->message[n++], request->partition, -1);
	queue->n -= n;
	memmove(queue->message, queue->message + n, sizeof(Message) * (size_t) queue->n);
	if (queue->stored < last)
		queue->stored = last;
	for (int i = 0; i < request->n; i++)
		report_stored(world, producer, &request->message[i], request->partition, request->offset < 0 ? -1 : request->offset + i);
}

/* Takes the answer to a request. */
static void
take_answer(World *world, Producer *producer, Request *request)
{
	Queue	   *queue = &producer->queue[request->topic][request->partition];

	request->state = UNUSED;
	if (request->forgotten)
		return;
	queue->requests--;
	switch (request->answer)
	{
		case STORED:
			take_stored(world, producer, queue, request);
			return;
		case OUT_OF_ORDER:
			if (!queue->drain && !producer->bump && !producer->fatal)
			{
				fail_request(world, producer, request, RELAY_TRANSIENT);
				return;
			}
			break;
		case TRANSIENT:
		case LOST:
			break;
		case MISSING:
			producer->unknown_since[request->topic] = world->now;
			break;
		case FORBIDDEN:
			producer->denied[request->topic] = true;
			fail_request(world, producer, request, RELAY_TARGET);
			return;
		case TOO_LARGE:
			fail_request(world, producer, request, RELAY_SIZE);
			return;
		case INVALID:
			fail_request(world, producer, request, RELAY_ROW);
			return;
	}
	queue->drain = true;
	for (int i = 0; i < request->n; i++)
		enqueue(queue, request->message[i]);
}

/* The oldest request in a state; of one connection, they keep their order. */
static Request *
oldest(World *world, RequestState state, int producer, Random *random)
{
	Request    *found = NULL;
	int			broker = (int) random_below(random, BROKERS);

	for (int q = 0; q < MAX_REQUESTS; q++)
	{
		Request    *request = &world->request[q];

		if (request->state == state && request->broker == broker &&
			(producer == 0 || request->producer == producer) && (found == NULL || request->order < found->order))
			found = request;
	}
	return found;
}

/* A thread of the library does something. */
void
library_step(World *world, Random *random)
{
	Producer   *producer = random_chance(random, 750) ? &world->stream : &world->probe;
	int			t = (int) random_below(random, (uint32_t) world->config.topics);
	Request    *request;

	if (!producer->open)
		return;
	if (producer->bump && requests_of(producer) == 0)
		bump_epoch(world, producer);
	if (random_chance(random, producer->nunknown[t] > 0 ? 300 : 30))
		refresh(world, producer, t);
	if (producer->hangs)
		return;
	request = oldest(world, ANSWERED, producer->number, random);
	if (request != NULL && random_chance(random, 600))
		take_answer(world, producer, request);
	else if (producer->partitions[t] > 0)
		send_batch(world, producer, t, (int) random_below(random, (uint32_t) producer->partitions[t]), random);
}

/* ---- brokers ---- */

static bool
is_too_large(const World *world, const Request *request)
{
	uint32_t	bytes = 0;

	for (int i = 0; i < request->n; i++)
		bytes += world->row[request->message[i].row].bytes;
	return bytes > world->topic[request->topic].max_bytes;
}

static bool
is_invalid(const World *world, const Request *request)
{
	for (int i = 0; i < request->n; i++)
		if (world->row[request->message[i].row].poison)
			return true;
	return false;
}

/* What the partition remembers of a producer; a new entry forgets an old one. */
static int
known_producer(Partition *partition, const Request *request)
{
	int			k;

	for (k = 0; k < KNOWN; k++)
		if (partition->known[k].producer == request->producer)
			return k;
	k = partition->next_known;
	partition->next_known = (k + 1) % KNOWN;
	memset(&partition->known[k], 0, sizeof(partition->known[k]));
	partition->known[k].producer = request->producer;
	partition->known[k].epoch = request->epoch;
	partition->known[k].next = request->sequence;	/* whatever it is */
	return k;
}

static Answer
append(World *world, Request *request)
{
	Partition  *partition = &world->topic[request->topic].partition[request->partition];
	int			k = known_producer(partition, request);

	if (partition->known[k].epoch != request->epoch)
	{
		if (request->epoch < partition->known[k].epoch || request->sequence != 0)
			return OUT_OF_ORDER;
		partition->known[k].epoch = request->epoch;
		partition->known[k].next = 0;
		partition->known[k].nrecent = 0;
	}
	for (int i = 0; i < partition->known[k].nrecent && i < 5; i++)
		if (partition->known[k].recent[i] == request->sequence && request->sequence < partition->known[k].next)
		{
			request->offset = request->order % 2 ? -1 : partition->known[k].offset[i];
			return STORED;
		}
	if (request->sequence != partition->known[k].next && FAULT != FAULT_no_sequence)
		return OUT_OF_ORDER;
	partition->known[k].next = request->sequence + request->n;
	partition->known[k].recent[partition->known[k].nrecent % 5] = request->sequence;
	partition->known[k].offset[partition->known[k].nrecent % 5] = partition->end;
	partition->known[k].nrecent++;
	request->offset = partition->end;
	partition->end += request->n;
	for (int i = 0; i < request->n; i++)
		check_stored(world, &request->message[i], request->partition);
	return STORED;
}

static Answer
answer(World *world, Request *request)
{
	Topic	   *topic = &world->topic[request->topic];

	if (!world->broker_up[request->broker])
		return LOST;
	if (!topic->exists || request->partition >= topic->partitions)
		return MISSING;
	if (!topic->allowed)
		return FORBIDDEN;
	if (topic->partition[request->partition].leader != request->broker || !world->replicas)
		return TRANSIENT;
	if (is_too_large(world, request))
		return TOO_LARGE;
	if (is_invalid(world, request))
		return INVALID;
	return append(world, request);
}

/* A broker works on a request, or a connection breaks. */
void
broker_step(World *world, Random *random)
{
	Request    *request = oldest(world, ON_ITS_WAY, 0, random);

	if (request == NULL)
		return;
	if (!world->calm && random_chance(random, (uint32_t) world->config.trouble / 2))
		request->answer = LOST; /* on its way there */
	else
	{
		request->answer = answer(world, request);
		TRACE(world, "broker %d: rows %d... (%d) of producer %d: %d", request->broker, request->message[0].row,
			  request->n, request->producer, (int) request->answer);
		if (!world->calm && random_chance(random, (uint32_t) world->config.trouble / 2))
			request->answer = LOST; /* on its way back */
	}
	request->state = ANSWERED;
	if (request->producer != world->stream.number && request->producer != world->probe.number)
		request->state = UNUSED;	/* nobody listens any more */
}

/* Something happens to a topic or a broker, or is repaired. */
void
trouble_step(World *world, Random *random)
{
	int			t = (int) random_below(random, (uint32_t) world->config.topics);
	Topic	   *topic = &world->topic[t];
	int			broker = (int) random_below(random, BROKERS);
	bool		repair = world->calm || random_chance(random, 600);

	switch (random_below(random, 7))
	{
		case 0:
			world->broker_up[broker] = repair;
			break;
		case 1:
			if (topic->exists && !repair && world->config.forget)
			{
				topic->exists = false;
				topic->incarnation++;
				world->ends++;	/* what is on its way may be in both */
			}
			else if (!topic->exists && repair)
			{
				topic->exists = true;
				topic->torn = true;
				for (int p = 0; p < MAX_PARTITIONS; p++)
					topic->partition[p] = (Partition) {.incarnation = topic->incarnation,.leader = p % BROKERS};
			}
			break;
		case 2:
			topic->allowed = repair;
			break;
		case 3:
			world->replicas = repair;
			break;
		case 4:
			if (world->config.grow && topic->partitions < MAX_PARTITIONS && !world->calm && random_chance(random, 100))
				topic->partitions++;
			break;
		case 5:
			if (!repair && random_chance(random, 100))
				(random_chance(random, 500) ? &world->stream : &world->probe)->hangs = true;
			break;
		default:
			topic->partition[random_below(random, MAX_PARTITIONS)].leader = broker;
	}
	TRACE(world, "topic %d: %s, %s, %d partitions; brokers %d %d, replicas %d", t,
		  topic->exists ? "there" : "gone", topic->allowed ? "allowed" : "forbidden", topic->partitions,
		  world->broker_up[0], world->broker_up[1], world->replicas);
}
