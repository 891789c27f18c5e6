/*-------------------------------------------------------------------------
 *
 * relay_kafka_private.h
 *		What the files of relay_kafka share, and nobody else needs: librdkafka.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_KAFKA_PRIVATE_H
#define RELAY_KAFKA_PRIVATE_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>

#include "utils/hsearch.h"

#include "relay_kafka.h"

typedef struct Flusher Flusher;
typedef struct TopicEntry TopicEntry;
typedef struct PartitionCount PartitionCount;

struct RelayKafka
{
	rd_kafka_t *rk;
	Flusher    *flusher;		/* NULL: it doesn't gather records anyway */

	/* relay_kafka_events.c */
	rd_kafka_queue_t *queue;
	rd_kafka_event_t *reports;	/* event whose reports are being handed out */

	/* relay_kafka_topics.c */
	HTAB	   *topics;
	int			nhandles;
	uint64		uses;			/* of handles, so far */
	TopicEntry *last_topic;		/* that was asked for: mostly it is asked for again */
	PartitionCount *counts;		/* of all topics */
};

/* relay_kafka.c */
extern int	relay_kafka_thread(pthread_t *thread, void *(*run) (void *), void *arg);

/* relay_kafka_flush.c */
extern Flusher *relay_kafka_flusher_begin(char *error, size_t error_size);
extern void relay_kafka_flusher_end(Flusher *flusher);

/* relay_kafka_events.c */
extern void relay_kafka_events_begin(RelayKafka *kafka);
extern void relay_kafka_events_end(RelayKafka *kafka);

/* relay_kafka_topics.c */
extern void relay_kafka_topics_begin(RelayKafka *kafka);
extern void relay_kafka_topics_end(RelayKafka *kafka);
extern void relay_kafka_counts_free(PartitionCount *counts);
extern rd_kafka_topic_t *relay_kafka_topic(RelayKafka *kafka, const char *topic);

#endif							/* RELAY_KAFKA_PRIVATE_H */
