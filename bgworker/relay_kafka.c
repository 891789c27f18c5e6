/*-------------------------------------------------------------------------
 *
 * relay_kafka.c
 *		Kafka producers: making and ending them, and handing records to them.
 *
 * The library runs threads of its own, and ours flush and end producers (see
 * relay_kafka_thread); none of them knows anything of the server.  There are no
 * callbacks but one that computes a partition, so no error can jump through the
 * library's frames.
 *
 * At least once, and no more than that: a producer is idempotent (KIP-98), so
 * its own retries neither double nor reorder; a row is done only when its
 * report says that it is persisted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "utils/memutils.h"

#include "relay_kafka_private.h"

/* what is set, and why is beside it where it isn't plain */
static const char *const settings[][2] = {
	{"enable.idempotence", "true"},
	{"message.timeout.ms", "0"},	/* an outage lasts as long as it lasts */
	{"message.max.bytes", "33554432"},	/* the topic decides, not the library */
	{"allow.auto.create.topics", "false"},	/* a mistyped topic is not created */
	{"socket.timeout.ms", "10000"},
	{"socket.nagle.disable", "true"},
	{"reconnect.backoff.max.ms", "1000"},
	{"log.queue", "true"},		/* no log from the library's threads */
	{"log.connection.close", "false"}
};

/* of the stream: whatever it is refused for good ends it, before a later row can pass */
static const char *const stream_settings[][2] = {
	{"enable.gapless.guarantee", "true"},
	{"linger.ms", "3"},			/* longer than most acknowledgements take; relay_kafka_flush cuts it short */
	{"sticky.partitioning.linger.ms", "0"}	/* or choose_partition is not asked for rows without a key */
};

/* of the probe: each record is a batch */
static const char *const alone_settings[][2] = {
	{"batch.num.messages", "1"},
	{"linger.ms", "0"}
};

/* Version of the library that runs, which may be newer than its headers. */
const char *
relay_kafka_version(void)
{
	return rd_kafka_version_str();
}

/* Makes a thread, which must know nothing of the server: it takes no signals.  0, or an errno. */
int
relay_kafka_thread(pthread_t *thread, void *(*run) (void *), void *arg)
{
	sigset_t	all;
	sigset_t	old;
	int			error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return error;
}

/* ---- making and ending producers ---- */

static bool
set_all(rd_kafka_conf_t *conf, const char *const (*list)[2], int n, char *error, size_t error_size)
{
	for (int i = 0; i < n; i++)
		if (rd_kafka_conf_set(conf, list[i][0], list[i][1], error, error_size) != RD_KAFKA_CONF_OK)
			return false;
	return true;
}

static rd_kafka_conf_t *
make_conf(const RelayKafkaOptions *options, char *error, size_t error_size)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	char		batch_bytes[16];
	bool		ok;

	snprintf(batch_bytes, sizeof(batch_bytes), "%u", options->batch_bytes);
	ok = rd_kafka_conf_set(conf, "bootstrap.servers", options->brokers, error, error_size) == RD_KAFKA_CONF_OK &&
		rd_kafka_conf_set(conf, "client.id", options->client_id, error, error_size) == RD_KAFKA_CONF_OK &&
		rd_kafka_conf_set(conf, "batch.size", batch_bytes, error, error_size) == RD_KAFKA_CONF_OK &&
		set_all(conf, settings, lengthof(settings), error, error_size);
	if (ok && options->alone)
		ok = set_all(conf, alone_settings, lengthof(alone_settings), error, error_size);
	else if (ok)
		ok = set_all(conf, stream_settings, lengthof(stream_settings), error, error_size);
	if (!ok)
	{
		rd_kafka_conf_destroy(conf);
		return NULL;
	}
	rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG |
							 RD_KAFKA_EVENT_DESCRIBECONFIGS_RESULT);
	return conf;
}

/*
 * The library allocates some ten times for each record and frees it all in
 * another thread, in batches.  With glibc's defaults each batch is followed by a
 * consolidation of small chunks and gives memory back to the kernel, which is
 * asked for it again at once: a fifth of the CPU of producing.
 */
static void
tune_malloc(void)
{
#ifdef __GLIBC__
	mallopt(M_MXFAST, 0);
	mallopt(M_TRIM_THRESHOLD, 32 * 1024 * 1024);
	mallopt(M_TOP_PAD, 1024 * 1024);
	mallopt(M_MMAP_THRESHOLD, 4 * 1024 * 1024);
#endif
}

/*
 * The library's main thread sleeps a second at a time, in whole milliseconds
 * rounded down, and spins for the rest: most of what an idle worker costs.  A
 * thread that may wake a millisecond late doesn't; they inherit that from the one
 * that makes them.
 */
static rd_kafka_t *
new_producer(rd_kafka_conf_t *conf, char *error, size_t error_size)
{
	rd_kafka_t *rk;

#ifdef __linux__
	prctl(PR_SET_TIMERSLACK, 1000000);
#endif
	rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, error_size);
#ifdef __linux__
	prctl(PR_SET_TIMERSLACK, 0);	/* as before */
#endif
	return rk;
}

/*
 * Makes a producer.  It connects by itself, now and after every loss.  NULL:
 * error says why; nothing is left behind.
 */
RelayKafka *
relay_kafka_open(const RelayKafkaOptions *options, char *error, size_t error_size)
{
	RelayKafka *kafka;
	rd_kafka_conf_t *conf;
	rd_kafka_t *rk;
	Flusher    *flusher = NULL;

	if (relay_kafka_wakeup_fd() < 0)
	{
		snprintf(error, error_size, "could not make a pipe: %s", strerror(errno));
		return NULL;
	}
	tune_malloc();
	conf = make_conf(options, error, error_size);
	if (conf == NULL)
		return NULL;

	/* the flusher first: to undo a producer is to wait for its threads */
	if (!options->alone && (flusher = relay_kafka_flusher_begin(error, error_size)) == NULL)
	{
		rd_kafka_conf_destroy(conf);
		return NULL;
	}
	rk = new_producer(conf, error, error_size);
	if (rk == NULL)
	{
		relay_kafka_flusher_end(flusher);
		rd_kafka_conf_destroy(conf);
		return NULL;
	}

	kafka = MemoryContextAllocZero(TopMemoryContext, sizeof(RelayKafka));
	kafka->rk = rk;
	kafka->flusher = flusher;
	relay_kafka_topics_begin(kafka);
	relay_kafka_events_begin(kafka);
	return kafka;
}

/* what is left of a producer, for the thread that ends it */
typedef struct Remains
{
	rd_kafka_t *rk;
	Flusher    *flusher;
	PartitionCount *counts;
} Remains;

static void *
destroy(void *arg)
{
	Remains    *remains = arg;

	relay_kafka_flusher_end(remains->flusher);
	rd_kafka_destroy_flags(remains->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	relay_kafka_counts_free(remains->counts);
	free(remains);
	return NULL;
}

/*
 * Ends a producer whose reports are all in, or are of no more interest.  Ending
 * waits for the library's threads, and one may hang in a name look-up: so a
 * thread does it, which like theirs knows nothing of the server.
 */
void
relay_kafka_close(RelayKafka *kafka)
{
	Remains    *remains = malloc(sizeof(Remains));
	pthread_t	thread;

	relay_kafka_events_end(kafka);
	relay_kafka_topics_end(kafka);

	if (remains != NULL)		/* or it is left as it is */
	{
		*remains = (Remains) {kafka->rk, kafka->flusher, kafka->counts};
		if (relay_kafka_thread(&thread, destroy, remains) == 0)
			pthread_detach(thread);
		else
			destroy(remains);
	}
	pfree(kafka);
}

/* ---- producing ---- */

static rd_kafka_headers_t *
make_headers(const RelayRecord *record)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(record->nheaders);

	for (int i = 0; i < record->nheaders; i++)
		rd_kafka_header_add(headers,
							record->headers[i].name.data, record->headers[i].name.len,
							record->headers[i].value.data, record->headers[i].value.len);
	return headers;
}

/*
 * Hands a record to the library, which copies it.  ticket comes back with the
 * report.  partition: -1, the key decides.
 */
RelayTake
relay_kafka_produce(RelayKafka *kafka, const RelayRecord *record, int32_t partition,
					uint64_t ticket, RelayClass *class, char *error, size_t error_size)
{
	rd_kafka_topic_t *topic = relay_kafka_topic(kafka, record->topic);
	rd_kafka_resp_err_t err = rd_kafka_last_error();
	rd_kafka_headers_t *headers;

	if (topic != NULL)
	{
		headers = make_headers(record);
		err = rd_kafka_producev(kafka->rk,
								RD_KAFKA_V_RKT(topic),
								RD_KAFKA_V_PARTITION(partition >= 0 ? partition : RD_KAFKA_PARTITION_UA),
								RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
								RD_KAFKA_V_KEY(record->key.data, (size_t) record->key.len),
								RD_KAFKA_V_VALUE((void *) record->value.data, (size_t) record->value.len),
								RD_KAFKA_V_HEADERS(headers),
								RD_KAFKA_V_TIMESTAMP(record->timestamp_ms),
								RD_KAFKA_V_OPAQUE((void *) (uintptr_t) ticket),
								RD_KAFKA_V_END);
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
			return RELAY_TAKEN;

		/* headers are the library's only if it took the record */
		rd_kafka_headers_destroy(headers);
	}
	if (err == RD_KAFKA_RESP_ERR__QUEUE_FULL)
		return RELAY_QUEUE_FULL;
	*class = relay_error_class(rd_kafka_err2name(err));
	snprintf(error, error_size, "topic \"%s\": %s", record->topic, rd_kafka_err2str(err));
	return RELAY_NOT_SENT;
}

/*
 * Has the library give rows back: those that it has not sent, or also those that
 * it has and that Kafka may have stored.
 */
void
relay_kafka_purge(RelayKafka *kafka, bool in_flight_too)
{
	rd_kafka_purge(kafka->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING |
				   (in_flight_too ? RD_KAFKA_PURGE_F_INFLIGHT : 0));
}
