/*-------------------------------------------------------------------------
 *
 * bare.c
 *		What one would write instead of the relay, with nothing in it that
 *		costs time: a floor to measure against.
 *
 *	bare loop BROKERS TOPIC HEADERS
 *		Publishes hand.outbox of the database that PGHOST and PGDATABASE name:
 *		select 5,000 rows, produce them, wait for Kafka, mark them by their ctid,
 *		until there are no more.
 *	bare producer BROKERS TOPIC HEADERS RECORDS BYTES KEYS IN_FLIGHT
 *		Produces so many records, which it makes up, and neither reads nor marks.
 *	bare pace BROKERS TOPIC HEADERS RECORDS BYTES KEYS RATE
 *		The same at so many records a second; tells how long Kafka took.
 *
 * HEADERS is 1 for the headers that the relay sends, 0 for none.  Prints a line
 * of JSON.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define BATCH_ROWS	5000

static rd_kafka_t *producer;
static rd_kafka_topic_t *topic;
static bool with_headers;
static long outstanding;		/* produced and not reported on */
static double *produced_at;		/* of each record, when paced */
static double *latency;
static long nlatencies;

static double
seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double
cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_utime.tv_usec / 1e6 +
		usage.ru_stime.tv_sec + usage.ru_stime.tv_usec / 1e6;
}

/* ---- Kafka ---- */

static void
on_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
	(void) rk;
	(void) opaque;
	if (message->err)
		die("Kafka refused a record: %s", rd_kafka_err2str(message->err));
	outstanding--;
	if (produced_at)
		latency[nlatencies++] = seconds() - produced_at[(intptr_t) message->_private];
}

static void
connect_kafka(const char *brokers, const char *name)
{
	rd_kafka_conf_t *conf = make_conf(brokers);
	const struct rd_kafka_metadata *metadata;

	set(conf, "enable.idempotence", "true");
	set(conf, "linger.ms", "0");
	set(conf, "partitioner", "murmur2_random");
	rd_kafka_conf_set_dr_msg_cb(conf, on_report);
	producer = make_handle(RD_KAFKA_PRODUCER, conf);
	topic = rd_kafka_topic_new(producer, name, NULL);
	/* connected and in the know, so that no start-up is measured */
	if (rd_kafka_metadata(producer, 0, topic, &metadata, 10000) != RD_KAFKA_RESP_ERR_NO_ERROR)
		die("no metadata of topic %s", name);
	rd_kafka_metadata_destroy(metadata);
}

/* what a row or a made-up record gives */
typedef struct Record
{
	const char *key;
	const char *value;
	int			value_len;
	const char *event_id;
	const char *type;
	const char *time;
	const char *subject;
	intptr_t	number;
} Record;

static rd_kafka_headers_t *
make_headers(const Record *record)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(6);

	rd_kafka_header_add(headers, "ce_specversion", -1, "1.0", -1);
	rd_kafka_header_add(headers, "ce_id", -1, record->event_id, -1);
	rd_kafka_header_add(headers, "ce_source", -1, "/idem/bench", -1);
	rd_kafka_header_add(headers, "ce_type", -1, record->type, -1);
	rd_kafka_header_add(headers, "ce_time", -1, record->time, -1);
	rd_kafka_header_add(headers, "ce_subject", -1, record->subject, -1);
	return headers;
}

static void
produce(const Record *record)
{
	for (;;)
	{
		rd_kafka_headers_t *headers = with_headers ? make_headers(record) : NULL;
		rd_kafka_resp_err_t err;

		err = rd_kafka_producev(producer,
								RD_KAFKA_V_RKT(topic),
								RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
								RD_KAFKA_V_KEY(record->key, strlen(record->key)),
								RD_KAFKA_V_VALUE((void *) record->value, (size_t) record->value_len),
								RD_KAFKA_V_HEADERS(headers),
								RD_KAFKA_V_OPAQUE((void *) record->number),
								RD_KAFKA_V_END);
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
			break;
		if (headers)
			rd_kafka_headers_destroy(headers);
		if (err != RD_KAFKA_RESP_ERR__QUEUE_FULL)
			die("could not produce: %s", rd_kafka_err2str(err));
		rd_kafka_poll(producer, 10);
	}
	outstanding++;
}

/* ---- loop ---- */

static PGconn *database;

static PGresult *
run(const char *statement, const char *argument)
{
	return execute(database, statement, 1, &argument);
}

/* 2026-11-30 12:00:00.123456+00, to T and Z */
static const char *
iso_time(char *time)
{
	time[10] = 'T';
	strcpy(strchr(time, '+'), "Z");
	return time;
}

static void
produce_rows(PGresult *rows)
{
	for (int i = 0; i < PQntuples(rows); i++)
	{
		Record		record = {
			.key = PQgetvalue(rows, i, 2),
			.value = PQgetvalue(rows, i, 3),
			.value_len = PQgetlength(rows, i, 3),
			.event_id = PQgetvalue(rows, i, 4),
			.type = PQgetvalue(rows, i, 5),
			.subject = PQgetvalue(rows, i, 6)
		};

		if (with_headers)
			record.time = iso_time(PQgetvalue(rows, i, 7));
		produce(&record);
		if (i % 500 == 499)
			rd_kafka_poll(producer, 0);
	}
}

static void
mark_rows(PGresult *rows)
{
	static char array[BATCH_ROWS * 24];
	char	   *p = array;

	*p++ = '{';
	for (int i = 0; i < PQntuples(rows); i++)
		p += sprintf(p, "%s\"%s\"", i > 0 ? "," : "", PQgetvalue(rows, i, 0));
	strcpy(p, "}");
	PQclear(run("mark", array));
}

static long
loop(void)
{
	char		last[32] = "-1";
	long		n = 0;

	for (;;)
	{
		PGresult   *rows = run("read", last);
		int			got = PQntuples(rows);

		if (got == 0)
		{
			PQclear(rows);
			return n;
		}
		strcpy(last, PQgetvalue(rows, got - 1, 1));
		produce_rows(rows);
		while (outstanding > 0)
			rd_kafka_poll(producer, 100);
		mark_rows(rows);
		PQclear(rows);
		n += got;
	}
}

static void
open_database(void)
{
	database = connect_database("");
	PQclear(PQexec(database, "SET timezone = 'UTC'"));
	prepare(database, "read", "SELECT ctid, seq, partition_key, payload, event_id, event_type, aggregate_id, created_at"
			" FROM hand.outbox WHERE seq > $1::bigint AND published_at IS NULL ORDER BY seq LIMIT 5000");
	prepare(database, "mark", "UPDATE hand.outbox SET published_at = now() WHERE ctid = ANY ($1::tid[])");
}

/* ---- producer, pace ---- */

static char *
make_value(int bytes)
{
	char	   *value = malloc(bytes + 1);

	/* compresses about as much as JSON does */
	for (int i = 0; i < bytes; i++)
		value[i] = "{\"abcdefghij0123456789:,"[(i * 7 + i / 13) % 24];
	value[bytes] = '\0';
	return value;
}

static void
produce_number(long i, const char *value, int bytes, long keys)
{
	char		key[32];
	char		event_id[48];
	Record		record = {key, value, bytes, event_id, "order-placed", "2026-11-30T12:00:00.123456Z", key, i};

	snprintf(key, sizeof(key), "key-%ld", i % keys);
	snprintf(event_id, sizeof(event_id), "0190b5a0-7c3e-7abc-8def-%012lx", i);
	produce(&record);
}

static void
produce_all(long n, int bytes, long keys, long in_flight)
{
	char	   *value = make_value(bytes);

	for (long i = 0; i < n; i++)
	{
		produce_number(i, value, bytes, keys);
		if (i % 500 == 499)
			rd_kafka_poll(producer, 0);
		while (outstanding >= in_flight)
			rd_kafka_poll(producer, 100);
	}
	while (outstanding > 0)
		rd_kafka_poll(producer, 100);
}

/* Waits for reports until a time, and wakes up for each, as a relay does. */
static void
wait_until(double time, int fd)
{
	for (;;)
	{
		char		junk[256];
		double		left = time - seconds();
		struct pollfd wait = {fd, POLLIN, 0};
		struct timespec timeout = {(time_t) left, (long) ((left - (time_t) left) * 1e9)};

		if (left <= 0)
			return;
		ppoll(&wait, 1, &timeout, NULL);
		while (read(fd, junk, sizeof(junk)) > 0)
			;
		rd_kafka_poll(producer, 0);
	}
}

static void
produce_paced(long n, int bytes, long keys, double rate)
{
	char	   *value = make_value(bytes);
	int			fds[2];
	double		start;

	if (pipe2(fds, O_NONBLOCK) != 0)
		die("could not make a pipe");
	rd_kafka_queue_io_event_enable(rd_kafka_queue_get_main(producer), fds[1], "1", 1);
	produced_at = malloc(sizeof(double) * n);
	latency = malloc(sizeof(double) * n);
	start = seconds();
	for (long i = 0; i < n; i++)
	{
		wait_until(start + i / rate, fds[0]);
		produced_at[i] = seconds();
		produce_number(i, value, bytes, keys);
		rd_kafka_poll(producer, 0);
	}
	while (outstanding > 0)
		wait_until(seconds() + 0.1, fds[0]);
}

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	double		start;
	double		cpu;
	double		elapsed;
	long		n;

	if (argc < 5)
		die("usage: see the head of bare.c");
	with_headers = atoi(argv[4]) != 0;
	connect_kafka(argv[2], argv[3]);
	if (strcmp(argv[1], "loop") == 0)
		open_database();

	start = seconds();
	cpu = cpu_seconds();
	if (strcmp(argv[1], "loop") == 0)
		n = loop();
	else if (argc == 9)
	{
		n = atol(argv[5]);
		if (strcmp(argv[1], "producer") == 0)
			produce_all(n, atoi(argv[6]), atol(argv[7]), atol(argv[8]));
		else
			produce_paced(n, atoi(argv[6]), atol(argv[7]), atof(argv[8]));
	}
	else
		die("usage: see the head of bare.c");
	elapsed = seconds() - start;

	printf("{\"rows\": %ld, \"seconds\": %.6f, \"cpu_usec_per_row\": %.3f",
		   n, elapsed, (cpu_seconds() - cpu) * 1e6 / (n > 0 ? n : 1));
	if (nlatencies > 0)
	{
		qsort(latency, nlatencies, sizeof(double), compare_doubles);
		printf(", \"p50\": %.3f, \"p99\": %.3f", latency[nlatencies / 2] * 1000,
			   latency[nlatencies * 99 / 100] * 1000);
	}
	puts("}");
	return 0;
}
