/*-------------------------------------------------------------------------
 *
 * relay.c
 *		The worker that publishes the outbox of one database.
 *
 * Words: a row is read from the outbox, produced (handed to the client
 * library), reported on by Kafka, and marked.  It is in flight from the
 * producing to the report.
 *
 * The worker sleeps on its latch and on the library's pipe.  A commit that
 * wrote events lowers a hint in shared memory and sets the latch; a report
 * makes the pipe readable.  Reading and marking are short transactions; none is
 * open while the worker waits, and it never waits for Kafka anywhere else.
 *
 * A row is marked only after Kafka said that it is stored.  Whatever dies in
 * between, the row is found unmarked at the next start and is sent again under
 * the same event id: never lost, at most RELAY_WINDOW_ROWS repeated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_shared.h"
#include "relay_kafka.h"
#include "relay_outbox.h"
#include "relay_rules.h"

PG_MODULE_MAGIC;

/* how long a worker that is told to end waits for the reports of its rows */
#define DRAIN_USEC		INT64CONST(1000000)

/* the settings that the worker's statements count on */
static const char *const pinned_settings[][2] = {
	{"search_path", "pg_catalog"},
	{"application_name", "idem relay"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_isolation", "read committed"},
	{"statement_timeout", "0"},
	{"lock_timeout", "1s"},		/* a lock on the outbox delays marks, and holds up nothing else */
	{"synchronous_commit", "local"},	/* a mark lost in a crash would be a repeat */
	{"deadlock_timeout", "100ms"},	/* the worker gives way, and tries again */
	{"plan_cache_mode", "force_generic_plan"},	/* by seq, or by ctid: no statement needs more */
	{"enable_nestloop", "on"},
	{"enable_indexscan", "on"},
	{"enable_tidscan", "on"},
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_sort", "off"},
	{"enable_hashjoin", "off"},
	{"enable_mergejoin", "off"},
	{"jit", "off"}
};

static RelayRules rules;
static IdemShared *shared = NULL;
static IdemRelay *relay = NULL; /* our part of it */
static RelayKafka *kafka = NULL;	/* NULL: no brokers are set */
static WaitEventSet *wait_set = NULL;
static char *brokers = NULL;	/* as the producer was made with */
static char *source = NULL;		/* ce_source of the events */
static Oid	extension = InvalidOid; /* as of the last transaction */
static bool outage = false;		/* no broker answered, and none has since */
static bool restart = false;	/* end, and be started again */

PGDLLEXPORT void relay_main(Datum arg);

/* Microseconds of a clock that doesn't go back. */
static int64
now_usec(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* ---- what others see ---- */

/* Notes an error where idem.relay_status shows it. */
static void
note_error(const char *text)
{
	TimestampTz now = GetCurrentTimestamp();
	int			len = pg_mbcliplen(text, strlen(text), sizeof(relay->last_error) - 1);

	SpinLockAcquire(&relay->mutex);
	memcpy(relay->last_error, text, len);
	relay->last_error[len] = '\0';
	relay->last_error_at = now;
	SpinLockRelease(&relay->mutex);
}

static IdemRelayState
current_state(void)
{
	if (kafka == NULL)
		return RELAY_NO_BROKERS;
	if (!OidIsValid(extension))
		return RELAY_NO_EXTENSION;
	if (outage && rules.in_flight > 0)
		return RELAY_WAITING_FOR_BROKER;
	if (relay_rules_retrying(&rules))
		return RELAY_RETRYING;
	return RELAY_RUNNING;
}

/* Says in the log what the worker waits for, once. */
static void
log_state(IdemRelayState state)
{
	switch (state)
	{
		case RELAY_NO_BROKERS:
			ereport(LOG,
					(errmsg("idem relay: idem.kafka_brokers is empty"),
					 errhint("Set idem.kafka_brokers and reload.")));
			break;
		case RELAY_NO_EXTENSION:
			ereport(LOG,
					(errmsg("idem relay: database \"%s\" has no extension idem", MyBgworkerEntry->bgw_extra),
					 errhint("Run CREATE EXTENSION idem CASCADE there.")));
			break;
		case RELAY_WAITING_FOR_BROKER:
			ereport(LOG,
					(errmsg("idem relay: no Kafka broker answers at %s", brokers),
					 errdetail("Events stay in the outbox and are published when one does.")));
			break;
		case RELAY_RETRYING:
			ereport(LOG,
					(errmsg("idem relay: events or their marks were refused and are tried again"),
					 errdetail("%s", relay->last_error)));
			break;
		default:
			ereport(LOG, (errmsg("idem relay: publishing")));
			break;
	}
}

/* Tells shared memory, and the log if the state is another one. */
static void
publish_state(void)
{
	IdemRelayState state = current_state();
	bool		changed = relay->state != state;

	SpinLockAcquire(&relay->mutex);
	relay->state = state;
	relay->in_flight = rules.in_flight + rules.acknowledged;
	SpinLockRelease(&relay->mutex);
	if (changed)
		log_state(state);
}

/* ---- units of work ---- */

/*
 * Runs one unit of work.  An error aborts its transaction and is logged; the
 * worker and what it knows live on.
 */
static bool
attempt(void (*work) (void *), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool ok = true;

	PG_TRY();
	{
		work(arg);
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
		note_error(error->message ? error->message : "unknown error");
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
begin(void)
{
	Oid			found = relay_outbox_begin();

	if (found != extension)
		relay_rules_forget(&rules);
	extension = found;
	if (!OidIsValid(found))
		relay_rules_nothing(&rules);
	return OidIsValid(found);
}

/* a read under way */
typedef struct Reading
{
	int64		next;			/* first seq that was not dealt with */
	bool		stopped;
} Reading;

/* Produces a row that was just read. */
static bool
produce_row(void *arg, RelayRow *row, const RelayRecord *record)
{
	Reading    *reading = arg;
	uint64_t	ticket;
	char		error[RELAY_KAFKA_TEXT];

	reading->next = row->seq;
	switch (relay_rules_row(&rules, row, &ticket))
	{
		case RELAY_SKIP:
			break;
		case RELAY_FULL:
			reading->stopped = true;
			return false;
		case RELAY_PRODUCE:
			switch (relay_kafka_produce(kafka, record, ticket, error, sizeof(error)))
			{
				case RELAY_TAKEN:
					break;
				case RELAY_QUEUE_FULL:
					relay_rules_not_taken(&rules, ticket, now_usec());
					reading->stopped = true;
					return false;
				case RELAY_REFUSED:
					note_error(error);
					relay_rules_failed(&rules, ticket, now_usec());
					break;
			}
			break;
	}
	reading->next = row->seq < RELAY_SEQ_MAX ? row->seq + 1 : row->seq;
	return true;
}

/* Reads and produces; whether the leaf's rows below the bound are all dealt with. */
static bool
produce_read(const RelayRead *read, int64 *next)
{
	Reading		reading = {read->from, false};
	int			n = relay_outbox_read(read, source, produce_row, &reading);

	*next = reading.next;
	return n < read->limit && !reading.stopped;
}

/*
 * The lowest seq of each leaf that a transaction has announced to commit, or
 * has committed since the hints were taken.
 */
static void
pending_commits(uint64 *lowest)
{
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		lowest[leaf] = IDEM_NO_HINT;
	for (int i = 0; i < shared->nbackends; i++)
	{
		IdemCommitting *committing = &shared->committing[i];
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
		lowest[leaf] = Min(lowest[leaf], pg_atomic_read_u64(&relay->hint[leaf]));
}

/*
 * Produces the rows that the snapshot shows and that lie below the positions,
 * because their transaction became visible after the hints were taken.  They go
 * first: the snapshot may show later rows of the same keys.  The hints are left
 * alone, since they may be of transactions that it does not show.  False: there
 * are more of them, nothing else may go out before.
 */
static bool
produce_late_rows(void)
{
	uint64		lowest[IDEM_LEAVES];
	RelayRead	read;
	int64		next;
	bool		complete = true;

	pending_commits(lowest);
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		if (lowest[leaf] == IDEM_NO_HINT ||
			!relay_rules_late_read(&rules, leaf, idem_seq_from_hint(lowest[leaf]), &read))
			continue;
		if (!produce_read(&read, &next))
		{
			relay_rules_hint(&rules, leaf, next);
			complete = false;
		}
	}
	if (pg_atomic_read_u32(&relay->sweep) != 0)
		relay_rules_sweep(&rules);
	return complete;
}

/* Finds the first unpublished row of a leaf. */
static void
peek(const RelayRead *read)
{
	int64		seq = 0;
	bool		found = relay_outbox_first(read, &seq);

	relay_rules_peeked(&rules, read, found, seq);
}

/* Reads what is to be read next, and produces it. */
static void
read_and_produce(void *arg)
{
	RelayRead	read;
	int64		next;

	(void) arg;
	if (begin() && produce_late_rows() && relay_rules_next_read(&rules, &read))
	{
		if (read.peek)
			peek(&read);
		else
		{
			bool		complete = produce_read(&read, &next);

			relay_rules_read_done(&rules, &read, complete, next);
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
mark_leaf(void *arg)
{
	Marking    *marking = arg;
	const RelayEntry **entries;
	int			n = 0;

	if (begin())
	{
		entries = palloc(sizeof(RelayEntry *) * RELAY_WINDOW_ROWS);
		n = relay_rules_to_mark(&rules, marking->leaf, entries);
		if (n > 0)
			marking->missing = relay_outbox_mark(marking->leaf, entries, n);
		IDEM_TEST_POINT("relay-marked");
	}
	relay_outbox_end();
	marking->marked = n - marking->missing;
}

/* Notes what was marked. */
static void
count_marks(const Marking *marking)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&relay->mutex);
	relay->published += marking->marked;
	relay->last_published_at = now;
	SpinLockRelease(&relay->mutex);

	if (marking->missing > 0)
		ereport(LOG,
				(errmsg("idem relay: %d published events were not found to be marked", marking->missing),
				 errdetail("Their rows were deleted, changed or marked by another hand meanwhile.")));
}

/* ---- the verbs of the main loop ---- */

/* Takes over settings that changed. */
static void
reload(void)
{
	const char *new_brokers;

	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);

	new_brokers = GetConfigOption("idem.kafka_brokers", false, false);
	if (strcmp(new_brokers, brokers) != 0)
	{
		/* the producer is made once, at the start: start again */
		ereport(LOG, (errmsg("idem relay: idem.kafka_brokers has changed, restarting")));
		restart = true;
	}
}

/* Takes the hints of transactions that committed. */
static void
hear_commits(void)
{
	/* from here on, a commit sets the latch again */
	pg_atomic_exchange_u32(&relay->woken, 0);

	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		uint64		hint;

		if (pg_atomic_read_u64(&relay->hint[leaf]) == IDEM_NO_HINT)
			continue;
		hint = pg_atomic_exchange_u64(&relay->hint[leaf], IDEM_NO_HINT);
		if (hint != IDEM_NO_HINT)
			relay_rules_hint(&rules, leaf, idem_seq_from_hint(hint));
	}
	if (pg_atomic_exchange_u32(&relay->sweep, 0) != 0)
		relay_rules_sweep(&rules);
}

/* Takes one thing that Kafka's library had to say. */
static void
hear_event(const RelayKafkaEvent *event)
{
	switch (event->kind)
	{
		case RELAY_KAFKA_REPORT:
			if (event->persisted)
			{
				outage = false;
				relay_rules_persisted(&rules, event->ticket, event->partition, event->offset, now_usec());
				break;
			}
			note_error(event->text);
			SpinLockAcquire(&relay->mutex);
			relay->failed++;
			SpinLockRelease(&relay->mutex);
			relay_rules_failed(&rules, event->ticket, now_usec());
			break;
		case RELAY_KAFKA_OUTAGE:
			outage = true;
			note_error(event->text);
			break;
		case RELAY_KAFKA_ERROR:
			note_error(event->text);
			break;
		case RELAY_KAFKA_FATAL:
			note_error(event->text);
			ereport(LOG, (errmsg("idem relay: the Kafka producer failed: %s", event->text)));
			restart = true;
			break;
		case RELAY_KAFKA_LOG:
			elog(DEBUG1, "idem relay: %s", event->text);
			break;
	}
}

static void
hear_kafka(void)
{
	RelayKafkaEvent event;

	if (kafka == NULL)
		return;
	while (relay_kafka_next(kafka, &event))
		hear_event(&event);
}

/* Marks, if marks are due: a transaction for each leaf. */
static void
mark(void)
{
	if (!relay_rules_mark_due(&rules, now_usec()))
		return;
	IDEM_TEST_POINT("relay-before-mark");
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		Marking		marking = {leaf, 0, 0};

		if (rules.leaf[leaf].acknowledged == 0)
			continue;
		if (!attempt(mark_leaf, &marking))
		{
			relay_rules_mark_failed(&rules, now_usec());
			continue;
		}
		relay_rules_marked(&rules, leaf);
		count_marks(&marking);
	}
}

/* Reads and produces once, if there is something to read.  True: there was. */
static bool
produce(void)
{
	RelayRow	row;

	if (kafka == NULL || !relay_rules_wants_read(&rules, now_usec()))
		return false;
	if (attempt(read_and_produce, NULL))
		return true;
	if (relay_outbox_broken_row(&row))
		relay_rules_row_failed(&rules, &row, now_usec());
	else
		relay_rules_read_failed(&rules, now_usec());
	return true;
}

/* Sleeps until there is something to do. */
static void
sleep_until(int64 wake_at)
{
	static uint32 wait_event = 0;
	WaitEvent	events[3];
	long		timeout = -1;

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("IdemRelay");
	if (wake_at != RELAY_SEQ_MAX)
		timeout = (long) Max((wake_at - now_usec() + 999) / 1000, 0);

	/* the events only tell that it is worth a look, and all is looked at */
	(void) WaitEventSetWait(wait_set, timeout, events, lengthof(events), wait_event);
	ResetLatch(MyLatch);
}

/*
 * Waits a little for the reports of rows in flight and marks them, so that an
 * orderly end repeats nothing.
 */
static void
drain(void)
{
	int64		deadline = now_usec() + DRAIN_USEC;

	while (kafka != NULL && !outage && now_usec() < deadline &&
		   rules.in_flight + rules.acknowledged > 0)
	{
		sleep_until(Min(deadline, now_usec() + 10000));
		CHECK_FOR_INTERRUPTS();
		hear_kafka();
		mark();
	}
}

/*
 * Ends the worker if it was told to.  A request that comes while a statement
 * runs ends it there, through CHECK_FOR_INTERRUPTS; one that comes in the sleep,
 * where the worker mostly is, is found here and leaves time to drain.
 */
static void
leave_if_told(void)
{
	if (!ProcDiePending && !restart)
		return;
	ProcDiePending = false;
	drain();
	proc_exit(1);				/* 1: the postmaster starts it again, unless it ends itself */
}

/* ---- start and end ---- */

/* Leaves shared memory in order; the server needs nothing else of us. */
static void
on_exit_worker(int code, Datum arg)
{
	(void) code;
	(void) arg;

	SpinLockAcquire(&relay->mutex);
	relay->pid = 0;
	relay->latch = NULL;
	relay->state = RELAY_NOT_RUNNING;
	relay->in_flight = 0;
	SpinLockRelease(&relay->mutex);

}

/*
 * The very last step.  The client library's threads are left to the kernel:
 * ending them properly means to wait for them, and one may hang in a name
 * look-up for as long as the resolver likes.  So the library's own exit handlers
 * must not run either, with threads about.
 */
static void
leave_threads(int code, Datum arg)
{
	(void) arg;
	_exit(code);
}

/* Takes our place in shared memory, so that commits find us. */
static void
attach(int index)
{
	shared = *(IdemShared **) find_rendezvous_variable(IDEM_SHARED_RENDEZVOUS);
	if (shared == NULL || index >= shared->nrelays)
		elog(FATAL, "idem relay: no shared memory");
	relay = &shared->relay[index];

	SpinLockAcquire(&relay->mutex);
	relay->database = MyDatabaseId;
	relay->pid = MyProcPid;
	relay->latch = MyLatch;
	relay->started_at = GetCurrentTimestamp();
	strlcpy(relay->brokers, brokers, sizeof(relay->brokers));
	strlcpy(relay->librdkafka, relay_kafka_version(), sizeof(relay->librdkafka));
	SpinLockRelease(&relay->mutex);
	before_shmem_exit(on_exit_worker, 0);
	on_proc_exit(leave_threads, 0);
}

/* Connects, and pins what the worker's statements count on. */
static void
connect_database(void)
{
	char	   *database = MyBgworkerEntry->bgw_extra;

	BackgroundWorkerInitializeConnection(database, NULL, 0);
	for (int i = 0; i < (int) lengthof(pinned_settings); i++)
		SetConfigOption(pinned_settings[i][0], pinned_settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);

	brokers = MemoryContextStrdup(TopMemoryContext, GetConfigOption("idem.kafka_brokers", false, false));
	source = MemoryContextStrdup(TopMemoryContext, GetConfigOption("idem.source", false, false));
	if (source[0] == '\0')
		source = MemoryContextStrdup(TopMemoryContext, psprintf("/idem/%s", database));
}

/* Makes the producer, which connects by itself in its own time. */
static void
open_kafka(void)
{
	char		error[RELAY_KAFKA_TEXT];
	char	   *client_id;

	if (brokers[0] == '\0')
		return;
	client_id = psprintf("idem-%s", MyBgworkerEntry->bgw_extra);
	kafka = relay_kafka_open(brokers, client_id, error, sizeof(error));
	if (kafka == NULL)
	{
		note_error(error);
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("idem relay: could not make a Kafka producer: %s", error)));
	}
}

static void
make_wait_set(void)
{
	wait_set = CreateLifelongWaitEventSet(3);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	if (kafka != NULL)
		AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, relay_kafka_wakeup_fd(kafka), NULL, NULL);
}

/*
 * Entry point of the worker; arg is the place of its database in
 * idem.databases, whose name is in bgw_extra.
 */
void
relay_main(Datum arg)
{
	MemoryContext turn;

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();

	connect_database();
	relay_rules_init(&rules);
	attach(DatumGetInt32(arg));
	open_kafka();
	make_wait_set();
	pgstat_report_activity(STATE_IDLE, NULL);

	/* each turn of the loop works in a context of its own */
	turn = AllocSetContextCreate(TopMemoryContext, "idem relay turn", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		MemoryContextReset(turn);
		MemoryContextSwitchTo(turn);
		reload();
		hear_commits();
		hear_kafka();
		leave_if_told();
		QueryCancelPending = false; /* there is no query here to cancel */
		CHECK_FOR_INTERRUPTS();
		mark();
		if (!produce())
		{
			publish_state();
			sleep_until(kafka != NULL ? relay_rules_wake_at(&rules) : RELAY_SEQ_MAX);
		}
	}
}
