/*-------------------------------------------------------------------------
 *
 * live.c
 *		Writes events at a steady rate and notes when each comes out of Kafka.
 *
 *	live CONNINFO STATEMENT CONNECTIONS RATE EVENTS BYTES KEYS BROKERS TOPIC
 *
 * STATEMENT takes the key as $1 and the payload, JSON of so many bytes, as $2; it
 * is a transaction of its own.  Event number i is due i/RATE seconds after the
 * start, whatever became of those before it.  The topic has one partition, and
 * nobody else writes to it.
 *
 * Prints a line for each event: its number, and the times of the INSERT, of the
 * commit's return and of the consumer's receipt, in seconds of Unix time.
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"

#define PATIENCE	30.0		/* seconds that an event may take */

typedef struct Event
{
	double		written;
	double		committed;
	_Atomic double received;
} Event;

static const char *conninfo;
static const char *statement;
static double rate;
static long nevents;
static int	nbytes;
static long nkeys;
static Event *events;
static double start;
static atomic_long next_event;
static atomic_long nreceived;
static atomic_bool listening;

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void
sleep_until(double time)
{
	struct timespec t = {(time_t) time, (long) ((time - (time_t) time) * 1e9)};

	while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL) != 0)
		;
}

/* ---- writers ---- */

static void
write_event(PGconn *conn, long i, char *payload)
{
	char		key[32];
	const char *values[2] = {key, payload};
	PGresult   *result;
	int			len = sprintf(payload, "{\"n\": %ld, \"pad\": \"", i);

	while (len < nbytes - 2)
	{
		payload[len] = "abcdefghij0123456789"[(len * 7 + len / 13) % 20];
		len++;
	}
	strcpy(payload + len, "\"}");
	snprintf(key, sizeof(key), "key-%ld", i % nkeys);

	events[i].written = now();
	result = execute(conn, "write", 2, values);
	events[i].committed = now();
	PQclear(result);
}

static void *
writer(void *arg)
{
	PGconn	   *conn = arg;
	char	   *payload = malloc(nbytes + 64);

	for (;;)
	{
		long		i = atomic_fetch_add(&next_event, 1);

		if (i >= nevents)
			break;
		sleep_until(start + i / rate);
		write_event(conn, i, payload);
	}
	PQfinish(conn);
	return NULL;
}

static PGconn *
connect_writer(void)
{
	PGconn	   *conn = connect_database(conninfo);

	prepare(conn, "write", statement);
	return conn;
}

/* ---- consumer ---- */

static rd_kafka_t *consumer;

static void
connect_consumer(const char *brokers, const char *topic)
{
	rd_kafka_conf_t *conf = make_conf(brokers);
	rd_kafka_topic_partition_list_t *partitions = rd_kafka_topic_partition_list_new(1);

	set(conf, "group.id", "live");
	set(conf, "enable.auto.commit", "false");
	set(conf, "enable.partition.eof", "true");
	consumer = make_handle(RD_KAFKA_CONSUMER, conf);
	rd_kafka_poll_set_consumer(consumer);
	rd_kafka_topic_partition_list_add(partitions, topic, 0)->offset = RD_KAFKA_OFFSET_END;
	if (rd_kafka_assign(consumer, partitions) != RD_KAFKA_RESP_ERR_NO_ERROR)
		die("could not assign the partition of %s", topic);
	rd_kafka_topic_partition_list_destroy(partitions);
}

static void
receive(const rd_kafka_message_t *message)
{
	const char *member = message->len > 0 ? memmem(message->payload, message->len, "\"n\": ", 5) : NULL;
	double		time = now();
	long		i;

	if (member == NULL)
		return;
	i = strtol(member + 5, NULL, 10);
	if (i < 0 || i >= nevents || events[i].received > 0)
		return;
	events[i].received = time;
	nreceived++;
}

static void *
reader(void *arg)
{
	(void) arg;
	while (nreceived < nevents)
	{
		rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, 100);

		if (message == NULL)
			continue;
		if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR)
			receive(message);
		else if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
			listening = true;
		else
			die("consumer: %s", rd_kafka_message_errstr(message));
		rd_kafka_message_destroy(message);
	}
	return NULL;
}

/* Waits for what the reader is to see. */
static void
await(const char *what, bool (*there) (void), double deadline)
{
	while (!there())
	{
		if (now() > deadline)
			die("%s did not come about; %ld of %ld events were received", what, (long) nreceived, nevents);
		sleep_until(now() + 0.005);
	}
}

static bool
is_listening(void)
{
	return listening;
}

static bool
all_received(void)
{
	return nreceived >= nevents;
}

int
main(int argc, char **argv)
{
	pthread_t	reading;
	pthread_t  *writing;
	int			nwriters;

	if (argc != 10)
		die("usage: see the head of live.c");
	conninfo = argv[1];
	statement = argv[2];
	nwriters = atoi(argv[3]);
	rate = atof(argv[4]);
	nevents = atol(argv[5]);
	nbytes = atoi(argv[6]);
	nkeys = atol(argv[7]);
	events = calloc(nevents, sizeof(Event));
	writing = calloc(nwriters, sizeof(pthread_t));

	connect_consumer(argv[8], argv[9]);
	pthread_create(&reading, NULL, reader, NULL);
	await("the consumer's first fetch", is_listening, now() + PATIENCE);

	start = now() + 0.2;
	for (int i = 0; i < nwriters; i++)
		pthread_create(&writing[i], NULL, writer, connect_writer());
	for (int i = 0; i < nwriters; i++)
		pthread_join(writing[i], NULL);
	await("the receipt of all events", all_received, now() + PATIENCE);
	pthread_join(reading, NULL);

	for (long i = 0; i < nevents; i++)
		printf("%ld %.6f %.6f %.6f\n", i, events[i].written, events[i].committed, events[i].received);
	return 0;
}
