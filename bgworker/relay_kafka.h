/*-------------------------------------------------------------------------
 *
 * relay_kafka.h
 *		The Kafka producer, without a trace of its library.
 *
 * Nothing here blocks, raises an error or calls back: what the library has to
 * say is fetched with relay_kafka_next in the worker's own thread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_KAFKA_H
#define RELAY_KAFKA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "relay_record.h"

#define RELAY_KAFKA_TEXT	256

typedef struct RelayKafka RelayKafka;

/* what became of a record that was to be produced */
typedef enum RelayTake
{
	RELAY_TAKEN,				/* a report will come */
	RELAY_QUEUE_FULL,			/* not now */
	RELAY_REFUSED				/* it can't be sent; no report will come */
} RelayTake;

typedef enum RelayKafkaEventKind
{
	RELAY_KAFKA_REPORT,			/* of one record */
	RELAY_KAFKA_OUTAGE,			/* no broker answers */
	RELAY_KAFKA_ERROR,			/* something else went wrong; the library goes on */
	RELAY_KAFKA_FATAL,			/* the producer is of no more use */
	RELAY_KAFKA_LOG				/* the library's own log */
} RelayKafkaEventKind;

typedef struct RelayKafkaEvent
{
	RelayKafkaEventKind kind;

	/* report */
	uint64_t	ticket;
	bool		persisted;		/* Kafka has stored the record, surely */
	int32_t		partition;
	int64_t		offset;			/* -1: not told */

	/* all kinds: empty when there is no error */
	char		text[RELAY_KAFKA_TEXT];
} RelayKafkaEvent;

extern const char *relay_kafka_version(void);
extern RelayKafka *relay_kafka_open(const char *brokers, const char *client_id,
									char *error, size_t error_size);
extern int	relay_kafka_wakeup_fd(const RelayKafka *kafka);
extern RelayTake relay_kafka_produce(RelayKafka *kafka, const RelayRecord *record,
									 uint64_t ticket, char *error, size_t error_size);
extern bool relay_kafka_next(RelayKafka *kafka, RelayKafkaEvent *event);

#endif							/* RELAY_KAFKA_H */
