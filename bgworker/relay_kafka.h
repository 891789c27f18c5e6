/*-------------------------------------------------------------------------
 *
 * relay_kafka.h
 *		Kafka producers, without a trace of their library.
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

#include "relay_errors.h"
#include "relay_record.h"

#define RELAY_KAFKA_TEXT	256

typedef struct RelayKafka RelayKafka;

/* how a producer is made */
typedef struct RelayKafkaOptions
{
	const char *brokers;
	const char *client_id;
	bool		alone;			/* a record to a batch; a refused one does not end it */
	uint32_t	batch_bytes;
} RelayKafkaOptions;

/* what became of a record that was to be produced */
typedef enum RelayTake
{
	RELAY_TAKEN,				/* a report will come */
	RELAY_QUEUE_FULL,			/* not now */
	RELAY_NOT_SENT				/* it can't be sent; no report will come */
} RelayTake;

typedef enum RelayKafkaEventKind
{
	RELAY_KAFKA_REPORT,			/* of one record */
	RELAY_KAFKA_LIMIT,			/* answer to relay_kafka_ask_limit */
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
	RelayClass	class;			/* unless it has */
	int32_t		partition;
	int64_t		offset;			/* -1: not told */

	/* answer */
	int			topic;			/* number that was given with the question */
	uint32_t	limit;			/* max.message.bytes of the topic; 0: not learned */
	int64_t		retention_ms;	/* of the topic; -1: for ever, -2: not learned */

	/* all kinds: empty when there is no error */
	char		text[RELAY_KAFKA_TEXT];
} RelayKafkaEvent;

extern const char *relay_kafka_version(void);
extern int	relay_kafka_wakeup_fd(void);
extern void relay_kafka_clear_wakeup(void);
extern RelayKafka *relay_kafka_open(const RelayKafkaOptions *options, char *error, size_t error_size);
extern void relay_kafka_close(RelayKafka *kafka);
extern RelayTake relay_kafka_produce(RelayKafka *kafka, const RelayRecord *record, int32_t partition,
									 uint64_t ticket, RelayClass *class, char *error, size_t error_size);
extern void relay_kafka_flush(RelayKafka *kafka);
extern int32_t relay_kafka_partitions(RelayKafka *kafka, const char *topic);
extern int32_t relay_kafka_partition(RelayBytes key, int32_t partitions);
extern void relay_kafka_purge(RelayKafka *kafka, bool in_flight_too);
extern bool relay_kafka_ask_limit(RelayKafka *kafka, const char *topic, int number);
extern bool relay_kafka_next(RelayKafka *kafka, RelayKafkaEvent *event);

#endif							/* RELAY_KAFKA_H */
