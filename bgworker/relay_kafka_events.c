/*-------------------------------------------------------------------------
 *
 * relay_kafka_events.c
 *		What the library has to say: reports, answers, errors, its log.
 *
 * Its threads put events into a queue and a byte into a pipe; the worker's thread
 * waits on the pipe beside its latch and takes the events out.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "relay_kafka_private.h"

/* how long the question for a topic's limit may take */
#define ASK_MSEC	5000

/* wakes the worker; of all producers, for the whole life of the process */
static int	wakeup[2] = {-1, -1};

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

/* Of a producer that was just made: it puts events into its queue and wakes the worker. */
void
relay_kafka_events_begin(RelayKafka *kafka)
{
	rd_kafka_set_log_queue(kafka->rk, NULL);
	kafka->queue = rd_kafka_queue_get_main(kafka->rk);
	rd_kafka_queue_io_event_enable(kafka->queue, wakeup[1], "1", 1);
}

/* What it still has to say is of no more interest. */
void
relay_kafka_events_end(RelayKafka *kafka)
{
	rd_kafka_queue_io_event_enable(kafka->queue, -1, NULL, 0);
	if (kafka->reports != NULL)
		rd_kafka_event_destroy(kafka->reports);
	rd_kafka_queue_destroy(kafka->queue);
}

/*
 * Asks Kafka for the largest batch that a topic takes, and how long it keeps
 * records.  The answer is an event; false: there will be none.
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

	/* its code is that of the error behind it, not _FATAL */
	if (rd_kafka_event_error_is_fatal(from))
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
