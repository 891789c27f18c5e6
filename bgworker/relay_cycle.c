/*-------------------------------------------------------------------------
 *
 * relay_cycle.c
 *		One turn of the relay: read rows, hand them to Kafka, mark them.
 *
 * relay_rules.c decides, relay_outbox.c has the SQL, relay_kafka.c the producer;
 * this file makes them units of work that survive an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"

#include "compat.h"
#include "relay.h"
#include "relay_outbox.h"
#include "relay_topics.h"

/*
 * Runs one unit of work.  An error aborts its transaction and is logged; the
 * worker and what it knows live on.
 */
static bool
attempt(RelayWorker *w, void (*work) (RelayWorker *, void *), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool ok = true;

	PG_TRY();
	{
		work(w, arg);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		error = CopyErrorData();
		EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		pgstat_report_activity(STATE_IDLE, NULL);
		relay_note_error(w, error->message ? error->message : "unknown error");
		FreeErrorData(error);
		ok = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return ok;
}

/*
 * Begins a transaction; whether the extension is there.  If it is another one
 * than before, all that is known of its tables is void; a row on its way must
 * not mark one of the new tables.
 */
static bool
begin(RelayWorker *w)
{
	Oid			found = relay_outbox_begin();

	if (found != w->extension)
	{
		relay_rules_forget(&w->rules);
		relay_topics_forget();
	}
	w->extension = found;
	w->looked = true;
	if (!OidIsValid(found))
		relay_rules_nothing(&w->rules);
	else
		relay_topics_refresh(w->slot);
	return OidIsValid(found);
}

/* a read under way */
typedef struct Reading
{
	RelayWorker *w;
	int64		next;			/* first seq that was not dealt with */
	bool		stopped;
} Reading;

/* Produces a row that was just read. */
static bool
produce_row(void *arg, RelayRow *row, const RelayRecord *record)
{
	Reading    *reading = arg;
	RelayWorker *w = reading->w;
	uint64_t	ticket;
	char		error[RELAY_KAFKA_TEXT];

	reading->next = row->seq;
	switch (relay_rules_row(&w->rules, row, &ticket))
	{
		case RELAY_SKIP:
			break;
		case RELAY_FULL:
			reading->stopped = true;
			return false;
		case RELAY_PRODUCE:
			switch (relay_kafka_produce(w->kafka, record, ticket, error, sizeof(error)))
			{
				case RELAY_TAKEN:
					break;
				case RELAY_QUEUE_FULL:
					relay_rules_not_taken(&w->rules, ticket, relay_now_usec());
					reading->stopped = true;
					return false;
				case RELAY_REFUSED:
					relay_note_error(w, error);
					relay_rules_failed(&w->rules, ticket, relay_now_usec());
					break;
			}
			break;
	}
	reading->next = row->seq < RELAY_SEQ_MAX ? row->seq + 1 : row->seq;
	return true;
}

/* Reads and produces; whether the leaf's rows below the bound are all dealt with. */
static bool
produce_read(RelayWorker *w, const RelayRead *read, int64 *next)
{
	Reading		reading = {w, read->from, false};
	int			n = relay_outbox_read(read, w->source, produce_row, &reading);

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
 * Produces the rows that the snapshot shows and that lie below the positions,
 * because their transaction became visible after the hints were taken.  They go
 * first: the snapshot may show later rows of the same keys.  The hints are left
 * alone, since they may be of transactions that it does not show.  False: there
 * are more of them, nothing else may go out before.
 */
static bool
produce_late_rows(RelayWorker *w)
{
	uint64		lowest[IDEM_LEAVES];
	RelayRead	read;
	int64		next;
	bool		complete = true;

	pending_commits(w, lowest);
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		if (lowest[leaf] == IDEM_NO_HINT ||
			!relay_rules_late_read(&w->rules, leaf, idem_seq_from_hint(lowest[leaf]), &read))
			continue;
		if (!produce_read(w, &read, &next))
		{
			relay_rules_hint(&w->rules, leaf, next);
			complete = false;
		}
	}
	if (pg_atomic_read_u32(&w->slot->sweep) != 0)
		relay_rules_sweep(&w->rules);
	return complete;
}

/* Finds the first unpublished row of a leaf. */
static void
peek(RelayWorker *w, const RelayRead *read)
{
	int64		seq = 0;
	bool		found = relay_outbox_first(read, &seq);

	relay_rules_peeked(&w->rules, read, found, seq);
}

/* Reads what is to be read next, and produces it. */
static void
read_and_produce(RelayWorker *w, void *arg)
{
	RelayRead	read;
	int64		next;

	(void) arg;
	if (begin(w) && produce_late_rows(w) && relay_rules_next_read(&w->rules, &read))
	{
		if (read.peek)
			peek(w, &read);
		else
		{
			bool		complete = produce_read(w, &read, &next);

			relay_rules_read_done(&w->rules, &read, complete, next);
		}
	}
	relay_outbox_end();
	IDEM_TEST_POINT("relay-produced");
}

/* a mark under way */
typedef struct Marking
{
	int			leaf;
	int			marked;
	int			missing;
} Marking;

/* Marks what Kafka has acknowledged of one leaf. */
static void
mark_leaf(RelayWorker *w, void *arg)
{
	Marking    *marking = arg;
	const RelayEntry **entries;
	int			n = 0;

	if (begin(w))
	{
		entries = palloc(sizeof(RelayEntry *) * RELAY_WINDOW_ROWS);
		n = relay_rules_to_mark(&w->rules, marking->leaf, entries);
		if (n > 0)
			marking->missing = relay_outbox_mark(marking->leaf, entries, n);
		IDEM_TEST_POINT("relay-marked");
	}
	relay_outbox_end();
	marking->marked = n - marking->missing;
}

/* Marks, if marks are due: a transaction for each leaf. */
void
relay_mark(RelayWorker *w)
{
	if (!relay_rules_mark_due(&w->rules, relay_now_usec()))
		return;
	IDEM_TEST_POINT("relay-before-mark");
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		Marking		marking = {leaf, 0, 0};

		if (w->rules.leaf[leaf].acknowledged == 0)
			continue;
		if (!attempt(w, mark_leaf, &marking))
		{
			relay_rules_mark_failed(&w->rules, relay_now_usec());
			continue;
		}
		relay_rules_marked(&w->rules, leaf);
		relay_count_marks(w, marking.marked, marking.missing);
	}
}

/* Reads and produces once, if there is something to read.  True: there was. */
bool
relay_produce(RelayWorker *w)
{
	RelayRow	row;

	if (w->kafka == NULL || !relay_rules_wants_read(&w->rules, relay_now_usec()))
		return false;
	if (attempt(w, read_and_produce, NULL))
		return true;
	if (relay_outbox_broken_row(&row))
		relay_rules_row_failed(&w->rules, &row, relay_now_usec());
	else
		relay_rules_read_failed(&w->rules, relay_now_usec());
	return true;
}
