/*-------------------------------------------------------------------------
 *
 * idem_note.c
 *		Telling the relay, at commit, which rows of the outbox are new.
 *
 * The CHECK of the outbox (outbox_valid) notes each row that is written,
 * whatever way it came.  The transaction's lowest unpublished seq of each leaf
 * is kept in this process's memory; when the transaction commits, one callback
 * lowers the shared hints and wakes the relay.  A hint that is lost costs time,
 * never an event: a relay that starts reads the whole outbox.
 *
 * The callback runs when the transaction is visible already.  In between, a
 * relay could see it and a later one, and read only the later one's rows, which
 * lie beyond its position.  So the transaction is announced before it becomes
 * visible, and the announcement stays until the hints are lowered.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/logicalworker.h"
#include "tcop/utility.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_note.h"
#include "idem_shmem.h"

/* days between 1970 and 2000, the epochs of Unix and of timestamptz */
#define UNIX_TO_POSTGRES_DAYS	(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE)

/* what the running transaction noted; cleared when it ends */
static uint64 noted_leaves = 0; /* bit n: leaf n has a noted seq */
static uint64 noted_hint[IDEM_LEAVES];
static bool noted_sweep = false;
static bool noted_holds = false;

static ProcessUtility_hook_type prev_ProcessUtility_hook = NULL;

/* Lowers an atomic to a value, unless it is lower already. */
static void
lower_hint(pg_atomic_uint64 *hint, uint64 value)
{
	uint64		old = pg_atomic_read_u64(hint);

	while (value < old && !pg_atomic_compare_exchange_u64(hint, &old, value))
		;
}

/* Announces that rows of some leaves may become visible, the lowest with this hint. */
static void
announce(uint64 leaves, uint64 lowest)
{
	IdemCommitting *committing = idem_my_committing();

	if (committing == NULL)
		return;
	committing->database = MyDatabaseId;
	pg_atomic_write_u64(&committing->hint, lowest);
	pg_write_barrier();
	pg_atomic_write_u64(&committing->leaves, leaves);
}

/* Announces a transaction that is about to commit. */
static void
announce_noted(void)
{
	uint64		lowest = IDEM_NO_HINT;

	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		if (noted_leaves & (UINT64CONST(1) << leaf))
			lowest = Min(lowest, noted_hint[leaf]);
	if (noted_leaves != 0)
		announce(noted_leaves, lowest);
}

/* Takes the announcement back, when the transaction has ended. */
static void
end_announcement(void)
{
	IdemCommitting *committing = idem_my_committing();

	if (committing == NULL)
		return;
	pg_write_barrier();
	pg_atomic_write_u64(&committing->leaves, 0);
}

/* Hands what the transaction noted to the relay.  Must not allocate or raise. */
static void
tell_relay(void)
{
	IdemRelay  *relay = idem_my_relay();

	if (relay == NULL)
		return;
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		if (noted_leaves & (UINT64CONST(1) << leaf))
			lower_hint(&relay->hint[leaf], noted_hint[leaf]);
	if (noted_sweep)
		pg_atomic_write_u32(&relay->sweep, 1);
	if (noted_holds)
		pg_atomic_write_u32(&relay->holds_changed, 1);

	/* what was written above must be seen by a worker that finds itself woken */
	pg_write_barrier();
	idem_relay_wake(relay);
}

/*
 * The rows of a prepared transaction become visible at COMMIT PREPARED, maybe of
 * another session: see utility_hook.  The apply worker of logical replication
 * commits them without a statement, and there is no callback.  But invalidation
 * messages stay with a prepared transaction, and reach all processes when it
 * commits, the apply worker between two turns of its loop: see hear_table.  So
 * the table that no statement of a user depends on is invalidated.
 */
static void
before_prepare(void)
{
	Oid			schema = get_namespace_oid("idem", true);
	Oid			table = OidIsValid(schema) ? get_relname_relid("topic", schema) : InvalidOid;

	if (OidIsValid(table))
		CacheInvalidateRelcacheByRelid(table);
}

/*
 * A relation was invalidated.  If an apply worker hears that it is idem.topic, it
 * may have committed a prepared transaction.  Must not allocate or raise, and
 * there may be no transaction.
 */
static void
hear_table(Datum arg, Oid relation)
{
	IdemRelay  *relay;
	Oid			table;

	(void) arg;
	if (!IsLogicalWorker())
		return;
	relay = idem_my_relay();
	if (relay == NULL)
		return;
	/* not known yet: the relay is about to read, maybe with a snapshot it has */
	table = pg_atomic_read_u32(&relay->topic_table);
	if (OidIsValid(table) && table != relation)
		return;
	pg_atomic_write_u32(&relay->sweep, 1);
	pg_write_barrier();
	idem_relay_wake(relay);
}

/* Whether this is the relay, which knows what it writes itself. */
static bool
am_relay(void)
{
	IdemRelay  *relay = idem_my_relay();

	return relay != NULL && relay->pid == MyProcPid;
}

/* End of a transaction.  At COMMIT its rows are visible to new snapshots. */
static void
xact_callback(XactEvent event, void *arg)
{
	(void) arg;
	if (noted_leaves == 0 && !noted_sweep && !noted_holds)
		return;
	if (am_relay())
	{
		noted_leaves = 0;
		noted_holds = false;
	}
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			before_prepare();
			return;
		case XACT_EVENT_PRE_COMMIT:
			if (noted_sweep)
				IDEM_TEST_POINT("sweep-noted");
			announce_noted();
			return;
		case XACT_EVENT_COMMIT:
			tell_relay();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			break;
		default:
			return;
	}
	end_announcement();
	noted_leaves = 0;
	noted_sweep = false;
	noted_holds = false;
}

/* Whether rows become visible, maybe of another session. */
static bool
commits_prepared(Node *statement)
{
	return IsA(statement, TransactionStmt) &&
		castNode(TransactionStmt, statement)->kind == TRANS_STMT_COMMIT_PREPARED;
}

/* Whether the outbox may be gone. */
static bool
drops_extension(Node *statement)
{
	return IsA(statement, DropStmt) && castNode(DropStmt, statement)->removeType == OBJECT_EXTENSION;
}

/*
 * Asks for a sweep with the commit of a statement that does to the outbox what no
 * CHECK can note.  A prepared transaction is visible before that commit, and
 * nobody knows which rows it wrote: so all are announced.
 */
static void
utility_hook(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	if (commits_prepared(pstmt->utilityStmt) || drops_extension(pstmt->utilityStmt))
		noted_sweep = true;
	if (commits_prepared(pstmt->utilityStmt))
		announce(PG_UINT64_MAX, 0);

	if (prev_ProcessUtility_hook)
		prev_ProcessUtility_hook(pstmt, queryString, readOnlyTree, context,
								 params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
}

/* Registers the callbacks; called once per process. */
void
idem_note_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	CacheRegisterRelcacheCallback(hear_table, (Datum) 0);
	prev_ProcessUtility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility_hook;
}

/*
 * Has the relay look at the settings of topics and at parked rows when the
 * transaction commits: other keys than before may be held.
 */
void
idem_note_holds(void)
{
	noted_holds = true;
}

/*
 * Remembers an unpublished row until the transaction commits.  A slot that there
 * is no leaf for is not for us to refuse.
 */
void
idem_note_row(int64 seq, int leaf)
{
	/* the highest seq would look like no hint at all */
	uint64		hint = Min(idem_hint_from_seq(seq), IDEM_NO_HINT - 1);
	uint64		bit;

	if (leaf < 0 || leaf >= IDEM_LEAVES)
		return;
	bit = UINT64CONST(1) << leaf;
	if ((noted_leaves & bit) == 0 || hint < noted_hint[leaf])
		noted_hint[leaf] = hint;
	noted_leaves |= bit;
}

/*
 * outbox_slot() -> smallint
 *
 * The slot of the ring for rows written now: the UTC day modulo 64, by the
 * clock and not by the start of the transaction.
 */
PG_FUNCTION_INFO_V1(outbox_slot);
Datum
outbox_slot(PG_FUNCTION_ARGS)
{
	int64		day = GetCurrentTimestamp() / USECS_PER_DAY + UNIX_TO_POSTGRES_DAYS;

	(void) fcinfo;
	PG_RETURN_INT16((int16) (day % IDEM_LEAVES));
}

/*
 * idem_relay_sweep() -> boolean
 *
 * Asks the relay of this database to read the whole outbox for unpublished
 * rows, once the transaction has committed.  True when a relay is there.
 */
PG_FUNCTION_INFO_V1(idem_relay_sweep);
Datum
idem_relay_sweep(PG_FUNCTION_ARGS)
{
	IdemRelay  *relay = idem_my_relay();

	(void) fcinfo;
	noted_sweep = true;
	PG_RETURN_BOOL(relay != NULL && relay->pid != 0);
}
