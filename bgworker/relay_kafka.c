/*-------------------------------------------------------------------------
 *
 * relay_kafka.c
 *		The Kafka producer; the only file that knows librdkafka.
 *
 * The library runs threads of its own, which know nothing of the server.  They
 * put events into a queue and a byte into a pipe; the worker's thread waits on
 * the pipe beside its latch and takes the events out.  There are no callbacks,
 * so no error can jump through the library's frames.
 *
 * At least once, and no more than that: the producer is idempotent (KIP-98), so
 * its own retries neither double nor reorder; a row is done only when its
 * report says that it is persisted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>
#include <librdkafka/rdkafka.h>

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "relay_kafka.h"

/* Kafka's limit, and a zero byte */
#define TOPIC_SIZE	250

/* what is set, and why is beside it where it isn't plain */
static const char *const settings[][2] = {
	{"enable.idempotence", "true"},
	{"message.timeout.ms", "0"},	/* an outage lasts as long as it lasts */
	{"linger.ms", "0"},			/* batches form behind the request in flight */
	{"partitioner", "murmur2_random"},	/* where Java clients put a key */
	{"allow.auto.create.topics", "false"},	/* a mistyped topic is not created */
	{"socket.timeout.ms", "10000"},
	{"socket.nagle.disable", "true"},
	{"reconnect.backoff.max.ms", "1000"},
	{"log.queue", "true"},		/* no log from the library's threads */
	{"log.connection.close", "false"}
};

/* a topic's handle; through a handle the first record isn't a second late */
typedef struct TopicEntry
{
	char		topic[TOPIC_SIZE];	/* hash key */
	rd_kafka_topic_t *handle;
} TopicEntry;

struct RelayKafka
{
	rd_kafka_t *rk;
	rd_kafka_queue_t *queue;
	rd_kafka_event_t *reports;	/* event whose reports are being handed out */
	HTAB	   *topics;
	int			pipe[2];
};

/* Version of the library that runs, which may be newer than its headers. */
const char *
relay_kafka_version(void)
{
	return rd_kafka_version_str();
}

static rd_kafka_conf_t *
make_conf(const char *brokers, const char *client_id, char *error, size_t error_size)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	bool		ok;

	ok = rd_kafka_conf_set(conf, "bootstrap.servers", brokers, error, error_size) == RD_KAFKA_CONF_OK &&
		rd_kafka_conf_set(conf, "client.id", client_id, error, error_size) == RD_KAFKA_CONF_OK;
	for (int i = 0; ok && i < (int) lengthof(settings); i++)
		ok = rd_kafka_conf_set(conf, settings[i][0], settings[i][1], error, error_size) == RD_KAFKA_CONF_OK;
	if (!ok)
	{
		rd_kafka_conf_destroy(conf);
		return NULL;
	}
	rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG);
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
 * Makes a producer.  It connects by itself, now and after every loss.  NULL:
 * error says why; nothing is left behind.
 */
RelayKafka *
relay_kafka_open(const char *brokers, const char *client_id, char *error, size_t error_size)
{
	RelayKafka *kafka = MemoryContextAllocZero(TopMemoryContext, sizeof(RelayKafka));
	rd_kafka_conf_t *conf;

	kafka->topics = make_topics();
	if (pipe2(kafka->pipe, O_NONBLOCK | O_CLOEXEC) != 0)
	{
		snprintf(error, error_size, "could not make a pipe: %s", strerror(errno));
		pfree(kafka);
		return NULL;
	}

	conf = make_conf(brokers, client_id, error, error_size);
	if (conf != NULL)
	{
		kafka->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, error_size);
		if (kafka->rk == NULL)
			rd_kafka_conf_destroy(conf);
	}
	if (kafka->rk == NULL)
	{
		close(kafka->pipe[0]);
		close(kafka->pipe[1]);
		hash_destroy(kafka->topics);
		pfree(kafka);
		return NULL;
	}

	rd_kafka_set_log_queue(kafka->rk, NULL);
	kafka->queue = rd_kafka_queue_get_main(kafka->rk);
	rd_kafka_queue_io_event_enable(kafka->queue, kafka->pipe[1], "1", 1);
	return kafka;
}

/* Becomes readable when relay_kafka_next has something to give. */
int
relay_kafka_wakeup_fd(const RelayKafka *kafka)
{
	return kafka->pipe[0];
}

static rd_kafka_topic_t *
topic_handle(RelayKafka *kafka, const char *topic)
{
	bool		found;
	TopicEntry *entry = hash_search(kafka->topics, topic, HASH_ENTER, &found);

	if (!found)
		entry->handle = NULL;
	if (entry->handle == NULL)
		entry->handle = rd_kafka_topic_new(kafka->rk, topic, NULL);
	if (entry->handle == NULL)
		hash_search(kafka->topics, topic, HASH_REMOVE, NULL);
	return entry->handle;
}

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
 * report.
 */
RelayTake
relay_kafka_produce(RelayKafka *kafka, const RelayRecord *record, uint64_t ticket,
					char *error, size_t error_size)
{
	rd_kafka_topic_t *topic = topic_handle(kafka, record->topic);
	rd_kafka_headers_t *headers;
	rd_kafka_resp_err_t err;

	if (topic == NULL)
	{
		strlcpy(error, rd_kafka_err2str(rd_kafka_last_error()), error_size);
		return RELAY_REFUSED;
	}
	headers = make_headers(record);
	err = rd_kafka_producev(kafka->rk,
							RD_KAFKA_V_RKT(topic),
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
	strlcpy(error, rd_kafka_err2str(err), error_size);
	return err == RD_KAFKA_RESP_ERR__QUEUE_FULL ? RELAY_QUEUE_FULL : RELAY_REFUSED;
}

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
		snprintf(event->text, sizeof(event->text), "topic \"%s\": %s",
				 rd_kafka_topic_name(message->rkt), rd_kafka_err2str(message->err));
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

/*
 * Takes the next thing that the library has to say; false: nothing more.  The
 * pipe tells of a queue that was empty and no longer is, so it is emptied
 * before the queue is, and the queue to the end.
 */
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
		{
			char		junk[256];
			bool		woken = false;

			while (read(kafka->pipe[0], junk, sizeof(junk)) > 0)
				woken = true;
			if (!woken)
				return false;
			continue;			/* look again, now that the pipe is empty */
		}

		if (rd_kafka_event_type(from) == RD_KAFKA_EVENT_DR)
		{
			kafka->reports = from;
			continue;
		}
		if (rd_kafka_event_type(from) == RD_KAFKA_EVENT_ERROR)
			fill_error(kafka, from, event);
		else
			fill_log(from, event);
		rd_kafka_event_destroy(from);
		return true;
	}
}
