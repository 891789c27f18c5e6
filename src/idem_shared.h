/*-------------------------------------------------------------------------
 *
 * idem_shared.h
 *		What backends and relay workers tell each other in shared memory.
 *
 * Everything here is a hint or a figure and may be zero at any time: the truth
 * is in the tables.  A worker that starts reads the whole outbox, so whatever
 * was noted here before a crash is not missed.
 *
 * The library idem_relay has no symbol of the library idem; it finds this
 * struct through a rendezvous variable.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_H
#define IDEM_SHARED_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/spin.h"

/* leaves of the outbox ring */
#define IDEM_LEAVES				64

/* at most this many databases in idem.databases */
#define IDEM_MAX_DATABASES		16

#define IDEM_BROKERS_LEN		256
#define IDEM_VERSION_LEN		32
#define IDEM_ERROR_LEN			256

/* hint of a leaf in which nothing was noted */
#define IDEM_NO_HINT			PG_UINT64_MAX

/* what a worker is doing, as idem.relay_status shows it */
typedef enum IdemRelayState
{
	RELAY_NOT_RUNNING = 0,		/* no worker */
	RELAY_NO_BROKERS,			/* idem.kafka_brokers is empty */
	RELAY_NO_EXTENSION,			/* the database has no extension idem */
	RELAY_WAITING_FOR_BROKER,	/* rows in flight, and no broker answers */
	RELAY_PAUSED,				/* the worker died twice without a mark */
	RELAY_RETRYING,				/* rows that Kafka or the database refused wait to be tried again */
	RELAY_RUNNING				/* publishing, or nothing to do */
} IdemRelayState;

/* one worker */
typedef struct IdemRelay
{
	/*
	 * Lowest unpublished seq that was committed to each leaf since the worker
	 * last looked, as an unsigned number with the order of the signed one
	 * (see idem_hint_from_seq).  Lowered by committing backends, taken by the
	 * worker before its snapshot; atomic, no lock.
	 */
	pg_atomic_uint64 hint[IDEM_LEAVES];

	/* set by backends, cleared by the worker: read the whole outbox */
	pg_atomic_uint32 sweep;

	/* set by backends, cleared by the worker: idem.topic or parked rows have changed */
	pg_atomic_uint32 holds_changed;

	/* oid of idem.topic, 0 until the worker has read it; written by the worker */
	pg_atomic_uint32 topic_table;

	/* set with the latch; who finds it set need not set the latch again */
	pg_atomic_uint32 woken;

	/* starts of the worker that did not get as far as its database; its own */
	int			failed_starts;

	/* protects all that follows; written by the worker only */
	slock_t		mutex;
	Oid			database;		/* InvalidOid until the worker first connected */
	pid_t		pid;			/* 0: no worker */
	Latch	   *latch;			/* of the worker's PGPROC; NULL: no worker */
	IdemRelayState state;
	TimestampTz started_at;
	int64		in_flight;		/* rows handed to Kafka and not yet marked */
	int64		unmarked;		/* of them: acknowledged */
	int64		window_rows;	/* in_flight never exceeds this */
	int64		held_keys;
	int64		trying_keys;	/* keys of which a row is tried alone */
	int64		stopped_topics;
	int64		parked;			/* rows parked since the worker started */
	int64		rebuilds;		/* failed producers made anew since the worker started */
	int64		order_violations;	/* since the worker started */
	int64		published;		/* rows marked since the server started */
	int64		failed;			/* reports with an error since the server started */
	TimestampTz last_published_at;	/* 0: never */
	TimestampTz last_error_at;	/* 0: never */
	char		brokers[IDEM_BROKERS_LEN];
	char		librdkafka[IDEM_VERSION_LEN];
	char		last_error[IDEM_ERROR_LEN];
} IdemRelay;

/*
 * A transaction that wrote events and is about to commit; one for each backend,
 * written by it alone.  Set before the commit and cleared after the hints are
 * lowered: a snapshot that sees the transaction finds one of the two, and a
 * later event of the same key can't overtake.
 */
typedef struct IdemCommitting
{
	pg_atomic_uint64 leaves;	/* bit n: events in leaf n; 0: nothing is being committed */
	pg_atomic_uint64 hint;		/* lowest unpublished seq; written before leaves */
	Oid			database;		/* likewise */
} IdemCommitting;

typedef struct IdemShared
{
	int			nrelays;		/* databases in idem.databases; set at start */
	int			nbackends;		/* entries of committing; set at start */
	IdemCommitting *committing; /* in shared memory, at one address in all processes */
	IdemRelay	relay[FLEXIBLE_ARRAY_MEMBER];
} IdemShared;

/* rendezvous variable that holds the IdemShared pointer */
#define IDEM_SHARED_RENDEZVOUS	"idem_shared"

/* order-preserving map from seq to the unsigned hint */
static inline uint64
idem_hint_from_seq(int64 seq)
{
	return (uint64) seq ^ (UINT64CONST(1) << 63);
}

static inline int64
idem_seq_from_hint(uint64 hint)
{
	return (int64) (hint ^ (UINT64CONST(1) << 63));
}

/*
 * Named points where a test makes a function or the worker stop or die.  Only
 * test builds have them.
 */
#ifdef IDEM_TEST
#define IDEM_TEST_RENDEZVOUS	"idem_test_point"
typedef void (*IdemTestPoint) (const char *name);

static inline void
IDEM_TEST_POINT(const char *name)
{
	IdemTestPoint *point = (IdemTestPoint *) find_rendezvous_variable(IDEM_TEST_RENDEZVOUS);

	if (*point)
		(*point) (name);
}
#else
#define IDEM_TEST_POINT(name)	((void) 0)
#endif

#endif							/* IDEM_SHARED_H */
