/*-------------------------------------------------------------------------
 *
 * relay_writing.c
 *		What the relay writes: marks of published rows, and refusals.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/errcodes.h"

#include "compat.h"
#include "relay.h"
#include "relay_outbox.h"
#include "relay_parked.h"
#include "relay_run.h"

/* refusals of one transaction */
#define REFUSALS	100

/* a mark under way */
typedef struct Marking
{
	int			leaf;
	int			n;
	const RelayEntry **entries;
	int			missing;
} Marking;

/* Marks what Kafka has acknowledged of one leaf. */
static void
mark_leaf(RelayWorker *w, void *arg)
{
	Marking    *marking = arg;

	marking->n = 0;
	if (relay_begin(w))
	{
		/* only now: if the tables were others, all of it was forgotten */
		marking->n = relay_rules_to_mark(&w->rules, marking->leaf, marking->entries, relay_now_usec());
		if (marking->n > 0)
			marking->missing = relay_outbox_mark(marking->leaf, marking->entries, marking->n);
		IDEM_TEST_POINT("relay-marked");
	}
	relay_outbox_end();
}

/*
 * Whether an error may come from one of the rows, a trigger that raises for it
 * for example, and not from the server's state: a lock, a full disk, a shutdown.
 */
static bool
rows_at_fault(const ErrorData *error)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
			return false;
	}
	return true;
}

/* Marks, if marks are due: a transaction for each leaf. */
static void
mark(RelayWorker *w)
{
	const RelayEntry **entries;

	if (!relay_rules_mark_due(&w->rules, relay_now_usec()))
		return;
	IDEM_TEST_POINT("relay-before-mark");
	entries = palloc(sizeof(RelayEntry *) * RELAY_ENTRIES);
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		Marking		marking = {leaf, 0, entries, 0};

		if (w->rules.leaf[leaf].nacknowledged == 0)
			continue;
		if (!relay_attempt(w, mark_leaf, &marking))
			relay_rules_mark_failed(&w->rules, leaf, entries, marking.n, rows_at_fault(w->error), relay_now_usec());
		else if (marking.n > 0)
		{
			relay_outbox_marked(marking.n);
			relay_rules_marked(&w->rules, leaf, entries, marking.n);
			relay_count_marks(w, marking.n - marking.missing, marking.missing);
			relay_run_marked();
			if (w->careful)
			{
				w->careful = false;
				relay_set_window(w);
			}
		}
	}
}

/* refusals under way */
typedef struct Noting
{
	int			n;
	RelayRefusal refusal[REFUSALS];
	bool		found[REFUSALS];
} Noting;

static void
note_refusals(RelayWorker *w, void *arg)
{
	Noting	   *noting = arg;

	if (relay_begin(w))
		for (noting->n = 0; noting->n < REFUSALS; noting->n++)
		{
			RelayRefusal *refusal = &noting->refusal[noting->n];

			if (!relay_rules_nth_refusal(&w->rules, noting->n, refusal, relay_now_usec()))
				break;
			noting->found[noting->n] = relay_parked_note(refusal, relay_producers_text(refusal->ticket));
		}
	relay_outbox_end();
}

/* Notes what Kafka refused, and parks what it refused too often. */
static void
note(RelayWorker *w)
{
	Noting	   *noting;
	RelayRefusal first;

	if (!relay_rules_nth_refusal(&w->rules, 0, &first, relay_now_usec()))
		return;
	noting = palloc0(sizeof(Noting));
	if (!relay_attempt(w, note_refusals, noting))
	{
		relay_rules_note_failed(&w->rules, relay_now_usec());
		return;
	}
	for (int i = 0; i < noting->n; i++)
	{
		if (noting->refusal[i].park && noting->found[i])
			ereport(LOG,
					(errmsg("idem relay: an event was refused %d times and is parked", noting->refusal[i].attempts),
					 errdetail("It has seq " INT64_FORMAT " in idem.outbox_%02d; %s.", noting->refusal[i].row.seq,
							   noting->refusal[i].row.leaf, relay_producers_text(noting->refusal[i].ticket))));
		relay_rules_noted(&w->rules, &noting->refusal[i], noting->found[i], relay_now_usec());
	}
}

/* Writes what is due. */
void
relay_write(RelayWorker *w)
{
	mark(w);
	note(w);
}
