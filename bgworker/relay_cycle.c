/*-------------------------------------------------------------------------
 *
 * relay_cycle.c
 *		One turn of the relay: read rows and hand them to Kafka.
 *
 * The rules decide, relay_outbox.c has the SQL, relay_producers.c the producers;
 * this file makes them units of work that survive an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/errcodes.h"

#include "compat.h"
#include "relay.h"
#include "relay_kept.h"
#include "relay_names.h"
#include "relay_outbox.h"
#include "relay_parked.h"
#include "relay_run.h"
#include "relay_topics.h"

/* rows of one unit of work that go alone */
#define ALONE_ROWS	100

/*
 * Runs one unit of work.  An error aborts its transaction and is logged and kept
 * in w->error; the worker and what it knows live on.
 */
bool
relay_attempt(RelayWorker *w, void (*work) (RelayWorker *, void *), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool ok = true;

	PG_TRY();
	{
		work(w, arg);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		w->error = CopyErrorData();
		EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		pgstat_report_activity(STATE_IDLE, NULL);
		if (w->error->message == NULL)
			w->error->message = "unknown error";
		relay_note_error(w, w->error->message);
		ok = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	relay_rules_end(&w->rules);
	return ok;
}

/*
 * Begins a transaction; whether the extension is there.  If it is another one
 * than before, all that is known of its tables is void; a row on its way must
 * not mark one of the new tables.
 */
bool
relay_begin(RelayWorker *w)
{
	Oid			found;

	relay_rules_begin(&w->rules);
	found = relay_outbox_begin(w->outbox);
	if (found != w->outbox)
	{
		relay_rules_forget(&w->rules);
		relay_topics_forget();
	}
	w->outbox = found;
	w->looked = true;
	if (!OidIsValid(found))
		relay_rules_nothing(&w->rules);
	else
	{
		relay_topics_refresh(w->slot);
		relay_names_settings(&w->rules);
	}
	return OidIsValid(found);
}

/* ---- reading ---- */

/* Sends rows whose turn has come. */
static bool
send_waiting(RelayWorker *w)
{
	uint64		ticket;
	int			n = 0;
	bool		stop = false;

	while (n < RELAY_READ_ROWS && !stop && relay_rules_next_waiting(&w->rules, &ticket, relay_now_usec()))
	{
		const RelayRow *row = &w->rules.entry[ticket & PG_UINT32_MAX].row;
		const RelayRecord *record = relay_kept_get(ticket);

		if (record == NULL)		/* there was no memory for it: read it again */
		{
			relay_rules_not_taken(&w->rules, ticket, relay_now_usec());
			break;
		}
		relay_run_row(row);
		relay_producers_send(w, RELAY_STREAM, record, row, ticket, &stop);
		relay_kept_free(ticket);
		n++;
	}
	if (w->rules.waiting == 0)
		relay_kept_forget();
	return n > 0;
}

/* for the case that a row of it can't be made into a record */
static RelayRead last_read;

/* a read under way */
typedef struct Reading
{
	RelayWorker *w;
	const RelayRead *read;
	int64		now;
	int64		next;			/* first seq that was not dealt with */
	bool		stopped;
} Reading;

/* The rules have said what to do with a row; whether to read on. */
static bool
read_on(Reading *reading, const RelayRow *row)
{
	if (!reading->stopped)
		reading->next = row->seq < RELAY_SEQ_MAX ? row->seq + 1 : row->seq;
	return !reading->stopped;
}

/* Asks the rules whether a row that was just read may go. */
static RelayVerdict
look_at_row(void *arg, RelayRow *row, const RelayRecord *record)
{
	Reading    *reading = arg;
	RelayWorker *w = reading->w;
	int32		count = relay_kafka_partitions(w->stream, record->topic);
	RelayVerdict verdict;

	reading->next = row->seq;
	relay_names_settings(&w->rules);
	if (count > 0)
		relay_rules_partitions(&w->rules, row->topic, count);
	else
		count = w->rules.topic[row->topic].partitions;	/* as the last stream knew */
	row->partition = count > 0 && record->key.data != NULL ?
		relay_kafka_partition(record->key, count) : RELAY_ANY_PARTITION;

	verdict = relay_rules_look(&w->rules, reading->read, row, reading->now);
	reading->stopped = verdict == RELAY_FULL;
	if (verdict == RELAY_SKIP)
		read_on(reading, row);
	return verdict;
}

/* Produces it, as far as the rules let it go. */
static bool
produce_row(void *arg, const RelayRow *row, const RelayRecord *record)
{
	Reading    *reading = arg;
	RelayWorker *w = reading->w;
	uint64_t	ticket;

	switch (relay_rules_row(&w->rules, reading->read, row, reading->now, &ticket))
	{
		case RELAY_SKIP:
			break;
		case RELAY_FULL:
			reading->stopped = true;
			break;
		case RELAY_WAIT:
			relay_kept_add(ticket, record);
			break;
		case RELAY_PRODUCE:
			relay_run_row(row);
			relay_producers_send(w, RELAY_STREAM, record, row, ticket, &reading->stopped);
			break;
		case RELAY_ALONE:
			relay_run_row(row);
			relay_producers_send(w, RELAY_PROBE, record, row, ticket, &reading->stopped);
			break;
	}
	return read_on(reading, row);
}

/* Reads and produces; whether the leaf's rows below the bound are all dealt with. */
static bool
produce_read(RelayWorker *w, const RelayRead *read, int64 *next)
{
	static const RelayRowSink sink = {look_at_row, produce_row};
	Reading		reading = {w, read, relay_now_usec(), read->from, false};
	int			n;

	last_read = *read;
	relay_run_busy();
	n = relay_outbox_read(read, w->source, &sink, &reading);

	*next = reading.next;
	return n < read->limit && !reading.stopped;
}

/*
 * The lowest seq of each leaf that a transaction has announced to commit, or
 * has committed since the hints were taken.
 */
static void
pending_commits(RelayWorker *w, uint64 *lowest)
{
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		lowest[leaf] = IDEM_NO_HINT;
	for (int i = 0; i < w->shared->nbackends; i++)
	{
		IdemCommitting *committing = &w->shared->committing[i];
		uint64		leaves = pg_atomic_read_u64(&committing->leaves);
		uint64		hint;

		if (leaves == 0)
			continue;
		pg_read_barrier();
		hint = pg_atomic_read_u64(&committing->hint);
		if (committing->database != MyDatabaseId)
			continue;
		for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
			if (leaves & (UINT64CONST(1) << leaf))
				lowest[leaf] = Min(lowest[leaf], hint);
	}

	/* whoever took its announcement back has left its hints before */
	pg_read_barrier();
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		lowest[leaf] = Min(lowest[leaf], pg_atomic_read_u64(&w->slot->hint[leaf]));
}

/*
 * Tells the rules where the snapshot may show rows below the positions, because
 * their transaction became visible after the hints were taken.  The hints are left
 * alone, since they may be of transactions that it does not show.
 */
static void
hear_committing(RelayWorker *w)
{
	uint64		lowest[IDEM_LEAVES];

	pending_commits(w, lowest);
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		if (lowest[leaf] != IDEM_NO_HINT)
			relay_rules_committing(&w->rules, leaf, idem_seq_from_hint(lowest[leaf]));
	if (pg_atomic_read_u32(&w->slot->sweep) != 0)
		relay_rules_sweep(&w->rules);
}

/* Finds the first unpublished row of a leaf. */
static void
peek(RelayWorker *w, const RelayRead *read)
{
	int64		seq = 0;
	bool		found = relay_outbox_first(read, &seq);

	relay_rules_peeked(&w->rules, read, found, seq);
}

/* Takes a parked row to the rules. */
static void
hold_row(void *arg, const RelayRow *row)
{
	RelayWorker *w = arg;

	relay_names_settings(&w->rules);
	relay_rules_hold(&w->rules, row);
}

/* Reads what is to be read next, and produces it. */
static void
read_and_produce(RelayWorker *w, void *arg)
{
	RelayRead	read;
	int64		next;

	(void) arg;
	if (!relay_begin(w))
		;
	else if (w->rules.holds_wanted)
	{
		relay_rules_holds_begin(&w->rules);
		relay_parked_read(hold_row, w);
		relay_rules_holds_end(&w->rules);
	}
	else
	{
		hear_committing(w);
		while (relay_rules_next_read(&w->rules, &read))
		{
			bool		complete;

			CHECK_FOR_INTERRUPTS();
			if (read.peek)
			{
				peek(w, &read);
				continue;
			}
			complete = produce_read(w, &read, &next);
			relay_rules_read_done(&w->rules, &read, complete, next);
			if (!read.late || !complete)
				break;
		}
	}
	relay_outbox_end();
	IDEM_TEST_POINT("relay-produced");
}

/* Reads rows that go alone, and produces them. */
static void
read_alone(RelayWorker *w, void *arg)
{
	bool	   *any = arg;
	RelayRead	read;
	int64		next;

	if (relay_begin(w))
	{
		hear_committing(w);
		for (int n = 0; n < ALONE_ROWS && relay_rules_next_alone(&w->rules, &read, relay_now_usec()); n++)
		{
			*any = true;
			produce_read(w, &read, &next);
			relay_rules_alone_done(&w->rules, &read);
		}
	}
	relay_outbox_end();
}

/* After an error in reading: one row may be at fault. */
static void
reading_failed(RelayWorker *w)
{
	RelayRow	row;
	/* an operator's cancel can come while a row is converted */
	bool		interrupted = ERRCODE_TO_CATEGORY(w->error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION;

	if (!relay_outbox_broken_row(&row) || interrupted)
		relay_rules_read_failed(&w->rules, relay_now_usec());
	else
	{
		uint64		ticket;

		relay_names_settings(&w->rules);
		ticket = relay_rules_broken(&w->rules, &last_read, &row, relay_now_usec());
		if (ticket == 0)
			return;				/* it is not its turn */
		relay_count_failure(w, w->error->message);
		relay_producers_note_text(ticket, w->error->message);
	}
}

/* Produces once what there is to produce.  True: there was something. */
bool
relay_produce(RelayWorker *w)
{
	bool		any = false;

	if (w->stream == NULL || w->paused)
		return false;
	relay_outbox_settle(w->rules.in_flight + w->rules.acknowledged + RELAY_READ_ROWS, w->rules.window_rows);
	any = send_waiting(w);
	if ((w->rules.counts.trying_keys > 0 || w->rules.counts.stopped_topics > 0) &&
		!relay_attempt(w, read_alone, &any))
	{
		reading_failed(w);
		return true;
	}
	if (!relay_rules_wants_read(&w->rules, relay_now_usec()))
		return any;
	if (!relay_attempt(w, read_and_produce, NULL))
		reading_failed(w);
	return true;
}
