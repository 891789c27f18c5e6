/*-------------------------------------------------------------------------
 *
 * relay_outbox.h
 *		The outbox as the relay uses it: reading rows, marking them.
 *
 * Each unit of work is one short transaction between relay_outbox_begin and
 * relay_outbox_end.  All SPI of the relay is here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_OUTBOX_H
#define RELAY_OUTBOX_H

#include "executor/spi.h"

#include "relay_record.h"
#include "relay_rules.h"

/* who takes the rows of a read */
typedef struct RelayRowSink
{
	/*
	 * Looks at a row of which only topic and key are in the record yet: RELAY_PRODUCE
	 * to have the rest, RELAY_SKIP, or RELAY_FULL to stop reading.
	 */
	RelayVerdict (*look) (void *arg, RelayRow *row, const RelayRecord *record);

	/* takes it; false: stop reading */
	bool		(*take) (void *arg, const RelayRow *row, const RelayRecord *record);
} RelayRowSink;

/* Asks the processor to have memory at hand; any address will do. */
static inline void
relay_prefetch(const char *from, int bytes)
{
#ifdef __GNUC__
	for (int i = 0; i < bytes; i += PG_CACHE_LINE_SIZE / 2)
		__builtin_prefetch(from + i);
#endif
}

extern Oid	relay_outbox_begin(Oid known);
extern void relay_outbox_end(void);
extern bool relay_outbox_first(const RelayRead *read, int64 *seq);
extern int	relay_outbox_read(const RelayRead *read, const char *source,
							  const RelayRowSink *sink, void *arg);
extern bool relay_outbox_broken_row(RelayRow *row);
extern void relay_outbox_run(SPIPlanPtr *plans, const char *sql, int leaf,
							 int nargs, Oid *types, Datum *values, bool read_only,
							 DestReceiver *receiver, int expected);

/* relay_outbox_mark.c */
extern int	relay_outbox_mark(int leaf, const RelayEntry **entries, int n);
extern void relay_outbox_marked(int n);
extern void relay_outbox_settle(int on_their_way, int window);

#endif							/* RELAY_OUTBOX_H */
