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
	RelayKafka *stream;			/* NULL: no brokers are set, or it could not be made */
	RelayKafka *probe;			/* NULL: not needed so far */
	WaitEventSet *wait_set;
	char	   *database;		/* as idem.databases names it */
	char	   *brokers;		/* as the producers are made with */
	char	   *client_id;
	char	   *source;			/* ce_source of the events */
	bool		looked;			/* for the extension, at least once */
	Oid			outbox;			/* as of the last transaction; invalid: no extension is there */
	bool		outage;			/* no broker answered, and none has since */
	bool		restart;		/* end, and be started again */
	bool		paused;			/* after two ends in disorder: it does nothing */
	bool		careful;		/* after one: few rows at a time */
	ErrorData  *error;			/* of the last unit of work that failed */
} RelayWorker;

extern int64 relay_now_usec(void);
extern void relay_set_window(RelayWorker *w);

/* relay_cycle.c */
extern bool relay_attempt(RelayWorker *w, void (*work) (RelayWorker *, void *), void *arg);
extern bool relay_begin(RelayWorker *w);
extern bool relay_produce(RelayWorker *w);

/* relay_writing.c */
extern void relay_write(RelayWorker *w);

/* relay_producers.c */
extern bool relay_producers_open(RelayWorker *w, char *error, size_t error_size);
extern void relay_producers_hear(RelayWorker *w);
extern void relay_producers_mind(RelayWorker *w);
extern RelayKafka *relay_producers_probe(RelayWorker *w);
extern void relay_producers_send(RelayWorker *w, RelayHandle handle, const RelayRecord *record,
								 const RelayRow *row, uint64 ticket, bool *stop);
extern void relay_producers_note_text(uint64 ticket, const char *text);
extern const char *relay_producers_text(uint64 ticket);

/* relay_status.c */
extern void relay_note_error(RelayWorker *w, const char *text);
extern void relay_count_marks(RelayWorker *w, int marked, int missing);
extern void relay_count_failure(RelayWorker *w, const char *text);
extern void relay_publish_state(RelayWorker *w);

#endif							/* RELAY_H */
