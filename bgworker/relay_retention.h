/*-------------------------------------------------------------------------
 *
 * relay_retention.h
 *		How long Kafka keeps the records of a topic.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_RETENTION_H
#define RELAY_RETENTION_H

/* an answer that is none; -1 is one, as Kafka says "for ever" */
#define RELAY_RETENTION_NOT_LEARNED	INT64CONST(-2)

extern bool relay_retention_is_old(int topic, int64 age_ms);
extern int	relay_retention_ask(int64 now);
extern void relay_retention_learned(int topic, int64 retention_ms, int64 now);

#endif							/* RELAY_RETENTION_H */
