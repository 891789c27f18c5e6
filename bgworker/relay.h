/*-------------------------------------------------------------------------
 *
 * relay.h
 *		The worker, as its parts share it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_H
#define RELAY_H

#include "storage/latch.h"

#include "idem_shared.h"
#include "relay_kafka.h"
#include "relay_rules.h"

typedef struct RelayWorker
{
	RelayRules	rules;
	IdemShared *shared;
	IdemRelay  *slot;			/* our part of it */
	RelayKafka *kafka;			/* NULL: no brokers are set */
	WaitEventSet *wait_set;
	char	   *database;		/* as idem.databases names it */
	char	   *brokers;		/* as the producer was made with */
	char	   *source;			/* ce_source of the events */
	bool		looked;			/* for the extension, at least once */
	Oid			extension;		/* as of the last transaction; invalid: none */
	bool		outage;			/* no broker answered, and none has since */
	bool		restart;		/* end, and be started again */
} RelayWorker;

extern int64 relay_now_usec(void);

/* relay_cycle.c */
extern bool relay_produce(RelayWorker *w);
extern void relay_mark(RelayWorker *w);

/* relay_status.c */
extern void relay_note_error(RelayWorker *w, const char *text);
extern void relay_count_marks(RelayWorker *w, int marked, int missing);
extern void relay_count_failure(RelayWorker *w, const char *text);
extern void relay_publish_state(RelayWorker *w);

#endif							/* RELAY_H */
