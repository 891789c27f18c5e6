/*-------------------------------------------------------------------------
 *
 * relay_kafka.c
 *		Kafka producers; the only file that knows librdkafka.
 *
 * The library runs threads of its own, which know nothing of the server.  They
 * put events into a queue and a byte into a pipe; the worker's thread waits on
 * the pipe beside its latch and takes the events out.  There are no callbacks
 * but one that computes a partition, so no error can jump through the library's
 * frames.
 *
 * At least once, and no more than that: a producer is idempotent (KIP-98), so
 * its own retries neither double nor reorder; a row is done only when its
 * report says that it is persisted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <librdkafka/rdkafka.h>

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "relay_kafka.h"

/* Kafka's limit, and a zero byte */
#define TOPIC_SIZE	250

/* how long the question for a topic's limit may take */
#define ASK_MSEC	5000

/* what is set, and why is beside it where it isn't plain */
static const char *const settings[][2] = {
	{"enable.idempotence", "true"},
	{"message.timeout.ms", "0"},	/* an outage lasts as long as it lasts */
	{"linger.ms", "0"},			/* batches form behind the request in flight */
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
	{"enable.gapless.guarantee", "true"}
};

/* of the probe: each record is a batch */
static const char *const alone_settings[][2] = {
	{"batch.num.messages", "1"}
};

/*
 * How many partitions a topic has, as the library's thread last saw.  Not
 * palloc'd: it has to outlive the topic's handle.
 */
typedef struct PartitionCount
{
	volatile int32_t count;		/* 0: not seen yet; one word, written by one thread at a time */
	struct PartitionCount *next;
} PartitionCount;

/*
 * A topic's handle; through a handle the first record isn't a second late.  So
 * many are kept, those used last: a handle takes memory for each partition, and a
 * topic that nobody writes to any more is to be forgotten.  Few in test builds, so
 * that tests have more topics than handles.
 */
#ifdef IDEM_TEST
#define HANDLES_MAX		3
#else
#define HANDLES_MAX		1000
#endif

typedef struct TopicEntry
{
	char		topic[TOPIC_SIZE];	/* hash key */
	rd_kafka_topic_t *handle;	/* NULL: given back */
	PartitionCount *partitions;
	uint64		used;			/* when, by counting uses */
} TopicEntry;

struct RelayKafka
{
	rd_kafka_t *rk;
	rd_kafka_queue_t *queue;
	rd_kafka_event_t *reports;	/* event whose reports are being handed out */
	HTAB	   *topics;
	int			nhandles;
	uint64		uses;			/* of handles, so far */
	TopicEntry *last_topic;		/* that was asked for: mostly it is asked for again */
	PartitionCount *counts;		/* of all topics */
};

/* wakes the worker; of all producers, for the whole life of the process */
static int	wakeup[2] = {-1, -1};

/* Version of the library that runs, which may be newer than its headers. */
const char *
relay_kafka_version(void)
{
	return rd_kafka_version_str();
}

/* Becomes readable when relay_kafka_next has something to give; -1: no pipe. */
int
relay_kafka_wakeup_fd(void)
{
	if (wakeup[0] < 0 && pipe2(wakeup, O_NONBLOCK | O_CLOEXEC) != 0)
		return -1;
	return wakeup[0];
}

/*
 * The pipe tells of a queue that was empty and no longer is: it is emptied first,
 * and then each producer's queue to the end.
 */
void
relay_kafka_clear_wakeup(void)
{
	char		junk[256];

	while (read(wakeup[0], junk, sizeof(junk)) > 0)
		;
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

static HTAB *
make_topics(void)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = TOPIC_SIZE;
	ctl.entrysize = sizeof(TopicEntry);
	ctl.hcxt = TopMemoryContext;
	return hash_create("idem relay topics", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
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
 * Makes a producer.  It connects by itself, now and after every loss.  NULL:
 * error says why; nothing is left behind.
 */
RelayKafka *
relay_kafka_open(const RelayKafkaOptions *options, char *error, size_t error_size)
{
	RelayKafka *kafka;
	rd_kafka_conf_t *conf;
	rd_kafka_t *rk;

	if (relay_kafka_wakeup_fd() < 0)
	{
		snprintf(error, error_size, "could not make a pipe: %s", strerror(errno));
		return NULL;
	}
	tune_malloc();
	conf = make_conf(options, error, error_size);
	if (conf == NULL)
		return NULL;
	rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, error_size);
	if (rk == NULL)
	{
		rd_kafka_conf_destroy(conf);
		return NULL;
	}

	kafka = MemoryContextAllocZero(TopMemoryContext, sizeof(RelayKafka));
	kafka->rk = rk;
	kafka->topics = make_topics();
	rd_kafka_set_log_queue(rk, NULL);
	kafka->queue = rd_kafka_queue_get_main(rk);
	rd_kafka_queue_io_event_enable(kafka->queue, wakeup[1], "1", 1);
	return kafka;
}

/* what is left of a producer, for the thread that ends it */
typedef struct Remains
{
	rd_kafka_t *rk;
	PartitionCount *counts;
} Remains;

static void *
destroy(void *arg)
{
	Remains    *remains = arg;

	rd_kafka_destroy_flags(remains->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	while (remains->counts != NULL)
	{
		PartitionCount *next = remains->counts->next;

		free(remains->counts);
		remains->counts = next;
	}
	free(remains);
	return NULL;
}

/*
 * Ends a producer whose reports are all in, or are of no more interest.  Ending
 * waits for the library's threads, and one may hang in a name look-up: so a
 * thread does it, which like theirs takes no signals and knows nothing of the
 * server.
 */
void
relay_kafka_close(RelayKafka *kafka)
{
	Remains    *remains = malloc(sizeof(Remains));
	HASH_SEQ_STATUS status;
	TopicEntry *entry;
	sigset_t	all;
	sigset_t	old;
	pthread_t	thread;

	rd_kafka_queue_io_event_enable(kafka->queue, -1, NULL, 0);
	if (kafka->reports != NULL)
		rd_kafka_event_destroy(kafka->reports);
	hash_seq_init(&status, kafka->topics);
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->handle != NULL)
			rd_kafka_topic_destroy(entry->handle);
	hash_destroy(kafka->topics);
	rd_kafka_queue_destroy(kafka->queue);

	if (remains != NULL)		/* or it is left as it is */
	{
		*remains = (Remains) {kafka->rk, kafka->counts};
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		if (pthread_create(&thread, NULL, destroy, remains) == 0)
			pthread_detach(thread);
		else
			destroy(remains);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	pfree(kafka);
}

/* ---- topics ---- */

/*
 * The partition of a record, as Java clients have it; and what the library knows
 * of the topic.  May run in a thread of the library's.
 */
static int32_t
choose_partition(const rd_kafka_topic_t *rkt, const void *key, size_t key_len,
				 int32_t partition_cnt, void *rkt_opaque, void *msg_opaque)
{
	((PartitionCount *) rkt_opaque)->count = partition_cnt;
	return rd_kafka_msg_partitioner_murmur2_random(rkt, key, key_len, partition_cnt, rkt_opaque, msg_opaque);
}

/*
 * Gives back the handle that was used longest ago.  Records in flight keep what
 * they need of it.
 */
static void
give_handle_back(RelayKafka *kafka)
{
	HASH_SEQ_STATUS status;
	TopicEntry *entry;
	TopicEntry *oldest = NULL;

	hash_seq_init(&status, kafka->topics);
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->handle != NULL && (oldest == NULL || entry->used < oldest->used))
			oldest = entry;
	rd_kafka_topic_destroy(oldest->handle);
	oldest->handle = NULL;
	kafka->nhandles--;
}

static void
open_handle(RelayKafka *kafka, TopicEntry *entry)
{
	rd_kafka_topic_conf_t *conf = rd_kafka_topic_conf_new();

	rd_kafka_topic_conf_set_partitioner_cb(conf, choose_partition);
	rd_kafka_topic_conf_set_opaque(conf, entry->partitions);
	entry->handle = rd_kafka_topic_new(kafka->rk, entry->topic, conf);
	if (entry->handle == NULL)
		rd_kafka_topic_conf_destroy(conf);
	else
		kafka->nhandles++;
}

/* What is known of a topic, or NULL. */
static TopicEntry *
known_topic(RelayKafka *kafka, const char *topic)
{
	TopicEntry *entry = kafka->last_topic;

	if (entry == NULL || strcmp(entry->topic, topic) != 0)
		entry = hash_search(kafka->topics, topic, HASH_FIND, NULL);
	if (entry != NULL)
		kafka->last_topic = entry;
	return entry;
}

/* The entry of a topic, with a handle; NULL: the library has none for it. */
static TopicEntry *
find_topic(RelayKafka *kafka, const char *topic)
{
	TopicEntry *entry = known_topic(kafka, topic);

	if (entry == NULL)
	{
		entry = hash_search(kafka->topics, topic, HASH_ENTER, NULL);
		entry->handle = NULL;
		entry->partitions = calloc(1, sizeof(PartitionCount));
		if (entry->partitions == NULL)
		{
			hash_search(kafka->topics, topic, HASH_REMOVE, NULL);
			return NULL;
		}
		/* a handle made anew may be the old one, which has this */
		entry->partitions->next = kafka->counts;
		kafka->counts = entry->partitions;
	}
	if (entry->handle == NULL)
	{
		if (kafka->nhandles >= HANDLES_MAX)
			give_handle_back(kafka);
		open_handle(kafka, entry);
	}
	entry->used = ++kafka->uses;
	return entry->handle != NULL ? entry : NULL;
}

/* How many partitions a topic has, as last seen; 0: not known. */
int32_t
relay_kafka_partitions(RelayKafka *kafka, const char *topic)
{
	TopicEntry *entry = known_topic(kafka, topic);

	return entry ? entry->partitions->count : 0;
}

/* The partition that a key goes to. */
int32_t
relay_kafka_partition(RelayBytes key, int32_t partitions)
{
	return rd_kafka_msg_partitioner_murmur2(NULL, key.data, (size_t) key.len, partitions, NULL, NULL);
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
	TopicEntry *topic = find_topic(kafka, record->topic);
	rd_kafka_resp_err_t err = rd_kafka_last_error();
	rd_kafka_headers_t *headers;

	if (topic != NULL)
	{
		headers = make_headers(record);
		err = rd_kafka_producev(kafka->rk,
								RD_KAFKA_V_RKT(topic->handle),
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

/*
 * Asks Kafka for the largest batch that a topic takes, and how long it keeps
 * records.  The answer is an event;
 * false: there will be none.
 */
bool
relay_kafka_ask_limit(RelayKafka *kafka, const char *topic, int number)
{
	rd_kafka_ConfigResource_t *resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
	rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(kafka->rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
	char		error[RELAY_KAFKA_TEXT];
	bool		ok = resource != NULL && options != NULL;

	if (ok)
	{
		rd_kafka_AdminOptions_set_request_timeout(options, ASK_MSEC, error, sizeof(error));
		rd_kafka_AdminOptions_set_opaque(options, (void *) (intptr_t) number);
		rd_kafka_DescribeConfigs(kafka->rk, &resource, 1, options, kafka->queue);
	}
	if (options != NULL)
		rd_kafka_AdminOptions_destroy(options);
	if (resource != NULL)
		rd_kafka_ConfigResource_destroy(resource);
	return ok;
}

/* ---- what the library has to say ---- */

static void
fill_report(const rd_kafka_message_t *message, RelayKafkaEvent *event)
{
	event->kind = RELAY_KAFKA_REPORT;
	event->ticket = (uint64_t) (uintptr_t) message->_private;
	event->persisted = message->err == RD_KAFKA_RESP_ERR_NO_ERROR &&
		rd_kafka_message_status(message) == RD_KAFKA_MSG_STATUS_PERSISTED;
	event->partition = message->partition;
	event->offset = message->offset >= 0 ? message->offset : -1;
	if (!event->persisted)
	{
		event->class = relay_error_class(rd_kafka_err2name(message->err));
		snprintf(event->text, sizeof(event->text), "topic \"%s\": %s",
				 rd_kafka_topic_name(message->rkt), rd_kafka_err2str(message->err));
	}
}

static void
fill_error(RelayKafka *kafka, rd_kafka_event_t *from, RelayKafkaEvent *event)
{
	rd_kafka_resp_err_t err = rd_kafka_event_error(from);

	if (err == RD_KAFKA_RESP_ERR__FATAL)
	{
		event->kind = RELAY_KAFKA_FATAL;
		rd_kafka_fatal_error(kafka->rk, event->text, sizeof(event->text));
		return;
	}
	event->kind = err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN ? RELAY_KAFKA_OUTAGE : RELAY_KAFKA_ERROR;
	strlcpy(event->text, rd_kafka_event_error_string(from), sizeof(event->text));
}

static void
fill_log(rd_kafka_event_t *from, RelayKafkaEvent *event)
{
	const char *facility;
	const char *text;
	int			level;

	event->kind = RELAY_KAFKA_LOG;
	if (rd_kafka_event_log(from, &facility, &text, &level) == 0)
		snprintf(event->text, sizeof(event->text), "%s: %s", facility, text);
}

static void
fill_limit(rd_kafka_event_t *from, RelayKafkaEvent *event)
{
	const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(from);
	const rd_kafka_ConfigResource_t **resources;
	const rd_kafka_ConfigEntry_t **entries;
	size_t		n = 0;
	bool		deletes = true;

	event->kind = RELAY_KAFKA_LIMIT;
	event->topic = (int) (intptr_t) rd_kafka_event_opaque(from);
	event->limit = 0;
	event->retention_ms = -2;
	resources = rd_kafka_DescribeConfigs_result_resources(result, &n);
	if (rd_kafka_event_error(from) != RD_KAFKA_RESP_ERR_NO_ERROR || n != 1 ||
		rd_kafka_ConfigResource_error(resources[0]) != RD_KAFKA_RESP_ERR_NO_ERROR)
		return;
	entries = rd_kafka_ConfigResource_configs(resources[0], &n);
	for (size_t i = 0; i < n; i++)
	{
		const char *value = rd_kafka_ConfigEntry_value(entries[i]);

		if (value != NULL && strcmp(rd_kafka_ConfigEntry_name(entries[i]), "max.message.bytes") == 0)
			event->limit = (uint32_t) strtoul(value, NULL, 10);
		if (value != NULL && strcmp(rd_kafka_ConfigEntry_name(entries[i]), "retention.ms") == 0)
			event->retention_ms = Max(strtoll(value, NULL, 10), -1);
		if (value != NULL && strcmp(rd_kafka_ConfigEntry_name(entries[i]), "cleanup.policy") == 0)
			deletes = strstr(value, "delete") != NULL;
	}
	if (!deletes)
		event->retention_ms = -1;
}

/* Takes the next thing that the library has to say; false: nothing more. */
bool
relay_kafka_next(RelayKafka *kafka, RelayKafkaEvent *event)
{
	rd_kafka_event_t *from;

	event->text[0] = '\0';
	for (;;)
	{
		if (kafka->reports != NULL)
		{
			const rd_kafka_message_t *message = rd_kafka_event_message_next(kafka->reports);

			if (message != NULL)
			{
				fill_report(message, event);
				return true;
			}
			rd_kafka_event_destroy(kafka->reports);
			kafka->reports = NULL;
		}

		from = rd_kafka_queue_poll(kafka->queue, 0);
		if (from == NULL)
			return false;
		switch (rd_kafka_event_type(from))
		{
			case RD_KAFKA_EVENT_DR:
				kafka->reports = from;
				continue;
			case RD_KAFKA_EVENT_ERROR:
				fill_error(kafka, from, event);
				break;
			case RD_KAFKA_EVENT_DESCRIBECONFIGS_RESULT:
				fill_limit(from, event);
				break;
			default:
				fill_log(from, event);
				break;
		}
		rd_kafka_event_destroy(from);
		return true;
	}
}
