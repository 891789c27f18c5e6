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
 * the same event id: never lost, and no more repeated than the window holds.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay.h"
#include "relay_run.h"
#include "relay_topics.h"

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
	{"synchronous_commit", "off"},	/* events would wait for marks: see relay_outbox_settle */
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

PGDLLEXPORT void relay_main(Datum arg);

/* Microseconds of a clock that doesn't go back. */
int64
relay_now_usec(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* ---- the verbs of the main loop ---- */

/* How much may be on its way. */
void
relay_set_window(RelayWorker *w)
{
	int			rows = atoi(GetConfigOption("idem.relay_window_rows", false, false));

	w->rules.window_rows = w->careful ? Min(rows, RELAY_CAREFUL_ROWS) : rows;
	w->rules.window_bytes = atoi(GetConfigOption("idem.relay_window_bytes", false, false)) * INT64CONST(1024);
}

/* Takes over settings that changed. */
static void
reload(RelayWorker *w)
{
	const char *new_brokers;

	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	relay_set_window(w);
	new_brokers = GetConfigOption("idem.kafka_brokers", false, false);
	if (strcmp(new_brokers, w->brokers) != 0)
	{
		/* the producer is made once, at the start: start again */
		ereport(LOG, (errmsg("idem relay: idem.kafka_brokers has changed, restarting")));
		w->restart = true;
	}
}

/* Takes the hints of transactions that committed. */
static void
hear_commits(RelayWorker *w)
{
	/* from here on, a commit sets the latch again */
	pg_atomic_exchange_u32(&w->slot->woken, 0);

	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		uint64		hint;

		if (pg_atomic_read_u64(&w->slot->hint[leaf]) == IDEM_NO_HINT)
			continue;
		hint = pg_atomic_exchange_u64(&w->slot->hint[leaf], IDEM_NO_HINT);
		if (hint != IDEM_NO_HINT)
			relay_rules_hint(&w->rules, leaf, idem_seq_from_hint(hint));
	}
	if (pg_atomic_exchange_u32(&w->slot->sweep, 0) != 0)
		relay_rules_sweep(&w->rules);
	/* another policy, or another parked row, may let keys go or hold some */
	if (pg_atomic_exchange_u32(&w->slot->holds_changed, 0) != 0)
	{
		/* the invalidation comes a little later than this, and wakes nobody */
		relay_topics_forget();
		w->rules.holds_wanted = true;
	}
}

/* Sleeps until there is something to do. */
static void
sleep_until(RelayWorker *w, int64 wake_at)
{
	static uint32 wait_event = 0;
	WaitEvent	events[3];
	long		timeout = -1;
	long		untold;

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("IdemRelay");
	if (wake_at != RELAY_NEVER)
		timeout = (long) Max((wake_at - relay_now_usec() + 999) / 1000, 0);

	/* what autovacuum is to know is told now and then, and in the end */
	untold = pgstat_report_stat(false);
	if (untold > 0 && (timeout < 0 || untold < timeout))
		timeout = untold;
	else
		untold = 0;

	/* the events only tell that it is worth a look, and all is looked at */
	if (WaitEventSetWait(w->wait_set, timeout, events, lengthof(events), wait_event) == 0 && untold > 0)
		pgstat_report_stat(true);
	ResetLatch(MyLatch);
}

/* When there is something to do though nothing happens. */
static int64
wake_at(RelayWorker *w)
{
	/* a producer could not be made: nothing else goes on before that */
	if (w->stream == NULL && w->brokers[0] != '\0')
		return w->rules.rebuild_at;
	if (w->stream == NULL || w->paused)
		return RELAY_NEVER;
	return relay_rules_wake_at(&w->rules, relay_now_usec());
}

/*
 * Waits a little for the reports of rows in flight and marks them, so that an
 * orderly end repeats nothing.
 */
static void
drain(RelayWorker *w)
{
	int64		deadline = relay_now_usec() + DRAIN_USEC;

	while (w->stream != NULL && !w->outage && relay_now_usec() < deadline &&
		   w->rules.in_flight + w->rules.acknowledged > 0)
	{
		sleep_until(w, Min(deadline, relay_now_usec() + 10000));
		CHECK_FOR_INTERRUPTS();
		relay_producers_hear(w);
		relay_write(w);
	}
}

/*
 * Ends the worker if it was told to.  A request that comes while a statement
 * runs ends it there, through CHECK_FOR_INTERRUPTS; one that comes in the sleep,
 * where the worker mostly is, is found here and leaves time to drain.
 */
static void
leave_if_told(RelayWorker *w)
{
	if (!ProcDiePending && !w->restart)
		return;
	ProcDiePending = false;
	drain(w);
	proc_exit(1);				/* 1: the postmaster starts it again, unless it ends itself */
}

/* ---- start and end ---- */

/*
 * SIGQUIT: another process died, or the server is stopped at once.  Like the
 * server's own handler, but that it is remembered whose fault it was.
 */
static void
quit(SIGNAL_ARGS)
{
	(void) postgres_signal_arg;
	relay_run_cut();
	_exit(2);
}

/* Takes account of runs before this one that ended in disorder. */
static void
look_back(RelayWorker *w)
{
	char		rows[IDEM_ERROR_LEN];
	int			ends = relay_run_begin(rows, sizeof(rows));

	if (ends == 0)
		return;
	w->careful = true;
	if (ends < RELAY_UNCLEAN_ENDS)
		return;
	w->paused = true;
	relay_note_error(w, psprintf("the worker died %d times without a mark; in flight: %s", ends,
								 rows[0] != '\0' ? rows : "not known"));
	ereport(WARNING,
			(errmsg("idem relay: paused, since the worker died %d times without having published anything", ends),
			 errdetail("In flight were: %s.", rows[0] != '\0' ? rows : "not known"),
			 errhint("Look at these rows of idem.outbox and at the server's log. SELECT pg_terminate_backend(%d) has the relay try again.",
					 MyProcPid)));
}

/* Leaves shared memory in order; the server needs nothing else of us. */
static void
on_exit_worker(int code, Datum arg)
{
	RelayWorker *w = (RelayWorker *) DatumGetPointer(arg);

	(void) code;

	relay_run_end();
	SpinLockAcquire(&w->slot->mutex);
	w->slot->pid = 0;
	w->slot->latch = NULL;
	w->slot->state = RELAY_NOT_RUNNING;
	w->slot->in_flight = 0;
	SpinLockRelease(&w->slot->mutex);
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

/* Finds our place in shared memory. */
static void
find_slot(RelayWorker *w, int index)
{
	w->shared = *(IdemShared **) find_rendezvous_variable(IDEM_SHARED_RENDEZVOUS);
	if (w->shared == NULL || index >= w->shared->nrelays)
		elog(FATAL, "idem relay: no shared memory");
	w->slot = &w->shared->relay[index];
}

/* Takes it, so that commits find us. */
static void
attach(RelayWorker *w)
{
	TimestampTz now = GetCurrentTimestamp();

	w->slot->failed_starts = 0;
	SpinLockAcquire(&w->slot->mutex);
	w->slot->database = MyDatabaseId;
	w->slot->pid = MyProcPid;
	w->slot->latch = MyLatch;
	w->slot->started_at = now;
	strlcpy(w->slot->brokers, w->brokers, sizeof(w->slot->brokers));
	strlcpy(w->slot->librdkafka, relay_kafka_version(), sizeof(w->slot->librdkafka));
	SpinLockRelease(&w->slot->mutex);
	before_shmem_exit(on_exit_worker, PointerGetDatum(w));
	on_proc_exit(leave_threads, 0);
}

/*
 * A worker whose database can't be connected to (it does not exist, say) ends with
 * an error and is started again each second: so it waits first, the longer the
 * more often that happened.  A database that was missing is found within 16 seconds.
 */
static void
wait_for_database(IdemRelay *slot)
{
	int64		deadline = relay_now_usec() + (INT64CONST(1000000) << Min(slot->failed_starts, 4));

	while (slot->failed_starts > 0 && relay_now_usec() < deadline)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) ((deadline - relay_now_usec()) / 1000 + 1), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (ProcDiePending)
			proc_exit(1);
	}
	slot->failed_starts++;
}

/* Connects, and pins what the worker's statements count on. */
static void
connect_database(RelayWorker *w)
{
	w->database = MyBgworkerEntry->bgw_extra;
	BackgroundWorkerInitializeConnection(w->database, NULL, 0);
	for (int i = 0; i < (int) lengthof(pinned_settings); i++)
		SetConfigOption(pinned_settings[i][0], pinned_settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);

	w->brokers = MemoryContextStrdup(TopMemoryContext, GetConfigOption("idem.kafka_brokers", false, false));
	w->source = MemoryContextStrdup(TopMemoryContext, GetConfigOption("idem.source", false, false));
	if (w->source[0] == '\0')
		w->source = MemoryContextStrdup(TopMemoryContext, psprintf("/idem/%s", w->database));
}

/* Makes the stream. */
static void
open_kafka(RelayWorker *w)
{
	char		error[RELAY_KAFKA_TEXT];

	if (w->brokers[0] == '\0')
		return;
	w->client_id = psprintf("idem-%s", w->database);
	if (!relay_producers_open(w, error, sizeof(error)))
	{
		relay_note_error(w, error);
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("idem relay: could not make a Kafka producer: %s", error)));
	}
}

static void
make_wait_set(RelayWorker *w)
{
	w->wait_set = CreateLifelongWaitEventSet(3);
	AddWaitEventToSet(w->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(w->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	if (w->stream != NULL)
		AddWaitEventToSet(w->wait_set, WL_SOCKET_READABLE, relay_kafka_wakeup_fd(), NULL, NULL);
}

/*
 * Entry point of the worker; arg is the place of its database in
 * idem.databases, whose name is in bgw_extra.
 */
void
relay_main(Datum arg)
{
	static RelayWorker worker;	/* all zero */
	RelayWorker *w = &worker;
	MemoryContext turn;
	bool		busy;

	pqsignal(SIGTERM, die);
	pqsignal(SIGQUIT, quit);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();

	find_slot(w, DatumGetInt32(arg));
	wait_for_database(w->slot);
	connect_database(w);
	relay_rules_init(&w->rules);
	attach(w);
	look_back(w);
	relay_set_window(w);
	open_kafka(w);
	make_wait_set(w);
	pgstat_report_activity(STATE_IDLE, NULL);

	/* each turn of the loop works in a context of its own */
	turn = AllocSetContextCreate(TopMemoryContext, "idem relay turn", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		MemoryContextReset(turn);
		MemoryContextSwitchTo(turn);
		reload(w);
		hear_commits(w);
		relay_producers_hear(w);
		leave_if_told(w);
		QueryCancelPending = false; /* there is no query here to cancel */
		CHECK_FOR_INTERRUPTS();
		relay_producers_mind(w);
		busy = relay_produce(w);
		relay_write(w);
		relay_publish_state(w);
		if (!busy)
			sleep_until(w, wake_at(w));
	}
}
