/*-------------------------------------------------------------------------
 *
 * relay_producers.c
 *		The worker's two producers: the stream and the probe.
 *
 * relay_kafka*.c have the library; the rules say when a producer is to be ended and
 * made anew; this file does it, and takes to the rules what the library says.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "relay.h"
#include "relay_names.h"
#include "relay_retention.h"

/* why the rows of the entries were refused, until that is noted in the table */
static char *refusal_text[RELAY_ENTRIES];

static RelayKafka *
open_producer(RelayWorker *w, bool alone, char *error, size_t error_size)
{
	RelayKafkaOptions options = {w->brokers, w->client_id, alone, w->rules.next_batch_bytes};

	return relay_kafka_open(&options, error, error_size);
}

/* Makes the stream, which connects by itself in its own time. */
bool
relay_producers_open(RelayWorker *w, char *error, size_t error_size)
{
	w->stream = open_producer(w, false, error, error_size);
	return w->stream != NULL;
}

/* The probe, which is made when it is first needed; NULL: it could not be. */
RelayKafka *
relay_producers_probe(RelayWorker *w)
{
	char		error[RELAY_KAFKA_TEXT];

	if (w->probe == NULL)
	{
		w->probe = open_producer(w, true, error, sizeof(error));
		if (w->probe == NULL)
			relay_note_error(w, error);
	}
	return w->probe;
}

/* Keeps why a row was refused. */
void
relay_producers_note_text(uint64 ticket, const char *text)
{
	char	  **kept = &refusal_text[ticket & PG_UINT32_MAX];

	if (*kept)
		pfree(*kept);
	*kept = MemoryContextStrdup(TopMemoryContext, text);
}

/* Why a row was refused. */
const char *
relay_producers_text(uint64 ticket)
{
	const char *kept = refusal_text[ticket & PG_UINT32_MAX];

	return kept ? kept : "unknown error";
}

/*
 * Hands a record to a producer.  *stop is set when no other one may follow now.
 */
void
relay_producers_send(RelayWorker *w, RelayHandle handle, const RelayRecord *record,
					 const RelayRow *row, uint64 ticket, bool *stop)
{
	RelayKafka *kafka = handle == RELAY_STREAM ? w->stream : relay_producers_probe(w);
	char		error[RELAY_KAFKA_TEXT];
	RelayClass	class = RELAY_TRANSIENT;
	/* a key decides for itself, also if there are other partitions by now */
	int32_t		partition = record->key.data == NULL ? row->partition : RELAY_ANY_PARTITION;
	RelayTake	take = kafka == NULL ? RELAY_QUEUE_FULL :
		relay_kafka_produce(kafka, record, partition, ticket, &class, error, sizeof(error));

	switch (take)
	{
		case RELAY_TAKEN:
			if (handle == RELAY_STREAM && !w->rules.lingers)
				relay_kafka_flush(kafka);
			break;
		case RELAY_QUEUE_FULL:
			relay_rules_not_taken(&w->rules, ticket, relay_now_usec());
			*stop = true;
			break;
		case RELAY_NOT_SENT:
			if (class == RELAY_RETURNED)
			{
				/* the producer has failed, which an event tells as well */
				if (handle == RELAY_STREAM)
					relay_rules_stream_failed(&w->rules, relay_now_usec());
				else
					relay_rules_probe_failed(&w->rules, relay_now_usec());
				*stop = true;
			}
			else
			{
				relay_count_failure(w, error);
				relay_producers_note_text(ticket, error);
			}
			relay_rules_refused(&w->rules, ticket, class, relay_now_usec());
			break;
	}
}

/* ---- what Kafka says ---- */

static void
hear_report(RelayWorker *w, const RelayKafkaEvent *event, int64 now)
{
	if (event->persisted)
	{
		w->outage = false;
		relay_rules_persisted(&w->rules, event->ticket, event->partition, event->offset, now);
		return;
	}
	if (event->class != RELAY_RETURNED)
	{
		relay_count_failure(w, event->text);
		if (event->class == RELAY_ROW || event->class == RELAY_SIZE)
			relay_producers_note_text(event->ticket, event->text);
	}
	relay_rules_failed(&w->rules, event->ticket, event->class, now);
}

static void
hear_fatal(RelayWorker *w, RelayHandle handle, const RelayKafkaEvent *event, int64 now)
{
	relay_note_error(w, event->text);
	ereport(LOG, (errmsg("idem relay: a Kafka producer ended and is made anew: %s", event->text)));
	if (handle == RELAY_STREAM)
		relay_rules_stream_failed(&w->rules, now);
	else
		relay_rules_probe_failed(&w->rules, now);
}

/* Takes one thing that Kafka's library had to say. */
static void
hear_event(RelayWorker *w, RelayHandle handle, const RelayKafkaEvent *event, int64 now)
{
	switch (event->kind)
	{
		case RELAY_KAFKA_REPORT:
			hear_report(w, event, now);
			break;
		case RELAY_KAFKA_LIMIT:
			relay_rules_limit(&w->rules, event->topic, event->limit, now);
			relay_retention_learned(event->topic, event->retention_ms, now);
			break;
		case RELAY_KAFKA_OUTAGE:
			w->outage = true;
			relay_note_error(w, event->text);
			break;
		case RELAY_KAFKA_ERROR:
			relay_note_error(w, event->text);
			break;
		case RELAY_KAFKA_FATAL:
			hear_fatal(w, handle, event, now);
			break;
		case RELAY_KAFKA_LOG:
			elog(DEBUG1, "idem relay: %s", event->text);
			break;
	}
}

/* Takes all of it. */
void
relay_producers_hear(RelayWorker *w)
{
	RelayKafkaEvent event;
	int64		now = relay_now_usec();

	relay_kafka_clear_wakeup();
	if (w->stream != NULL)
		while (relay_kafka_next(w->stream, &event))
			hear_event(w, RELAY_STREAM, &event, now);
	if (w->probe != NULL)
		while (relay_kafka_next(w->probe, &event))
			hear_event(w, RELAY_PROBE, &event, now);
}

/* ---- what the rules want ---- */

static void
rebuild_stream(RelayWorker *w)
{
	char		error[RELAY_KAFKA_TEXT];

	if (w->stream != NULL)
		relay_kafka_close(w->stream);
	if (relay_producers_open(w, error, sizeof(error)))
		relay_rules_stream_built(&w->rules, relay_now_usec());
	else
	{
		relay_note_error(w, error);
		relay_rules_stream_failed(&w->rules, relay_now_usec());
	}
}

/* The probe is made anew when it is next needed. */
static void
end_probe(RelayWorker *w)
{
	if (w->probe != NULL)
		relay_kafka_close(w->probe);
	w->probe = NULL;
	relay_rules_probe_built(&w->rules, relay_now_usec());
}

/* Does what the rules want done with the producers. */
void
relay_producers_mind(RelayWorker *w)
{
	RelayStreamAction action;
	int			topic;

	relay_rules_tick(&w->rules, relay_now_usec());
	while ((action = relay_rules_stream_action(&w->rules, relay_now_usec())) != RELAY_STREAM_LEAVE)
	{
		if (action == RELAY_STREAM_REBUILD)
		{
			rebuild_stream(w);
			break;
		}
		if (w->stream != NULL)
			relay_kafka_purge(w->stream, action == RELAY_STREAM_PURGE_ALL);
	}
	if (w->rules.probe_broken)
		end_probe(w);
	while ((topic = relay_rules_ask_limit(&w->rules)) != RELAY_NONE)
	{
		RelayKafka *probe = relay_producers_probe(w);

		if (probe == NULL || !relay_kafka_ask_limit(probe, relay_names_topic(topic), topic))
			relay_rules_limit(&w->rules, topic, 0, relay_now_usec());
	}
	while ((topic = relay_retention_ask(relay_now_usec())) != RELAY_NONE)
	{
		RelayKafka *probe = relay_producers_probe(w);

		if (probe == NULL || !relay_kafka_ask_limit(probe, relay_names_topic(topic), topic))
			relay_retention_learned(topic, RELAY_RETENTION_NOT_LEARNED, relay_now_usec());
	}
}
