/*-------------------------------------------------------------------------
 *
 * idem_shmem.c
 *		Shared memory of the relays, and their registration.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "compat.h"
#include "idem_guc.h"
#include "idem_shmem.h"

/* seconds after which the postmaster starts a worker that ended */
#define RELAY_RESTART_TIME	1

static IdemShared *shared = NULL;
static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* Offset of the array IdemShared.committing points to. */
static Size
committing_offset(void)
{
	return MAXALIGN(add_size(offsetof(IdemShared, relay),
							 mul_size(sizeof(IdemRelay), list_length(idem_database_list()))));
}

static Size
shared_size(void)
{
	return add_size(committing_offset(), mul_size(sizeof(IdemCommitting), MaxBackends));
}

static void
shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(shared_size());
}

static void
init_relay(IdemRelay *relay)
{
	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
		pg_atomic_init_u64(&relay->hint[leaf], IDEM_NO_HINT);
	pg_atomic_init_u32(&relay->sweep, 0);
	pg_atomic_init_u32(&relay->holds_changed, 0);
	pg_atomic_init_u32(&relay->topic_table, InvalidOid);
	pg_atomic_init_u32(&relay->woken, 0);
	SpinLockInit(&relay->mutex);
}

static void
shmem_startup(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idem", shared_size(), &found);
	if (!found)
	{
		memset(shared, 0, shared_size());
		shared->nrelays = list_length(idem_database_list());
		for (int i = 0; i < shared->nrelays; i++)
			init_relay(&shared->relay[i]);
		shared->nbackends = MaxBackends;
		shared->committing = (IdemCommitting *) ((char *) shared + committing_offset());
		for (int i = 0; i < shared->nbackends; i++)
		{
			pg_atomic_init_u64(&shared->committing[i].leaves, 0);
			pg_atomic_init_u64(&shared->committing[i].hint, IDEM_NO_HINT);
		}
	}
	LWLockRelease(AddinShmemInitLock);

	*(IdemShared **) find_rendezvous_variable(IDEM_SHARED_RENDEZVOUS) = shared;
}

/* Registers the worker of the index-th database of idem.databases. */
static void
register_relay(int index, const char *database)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RELAY_RESTART_TIME;
	strlcpy(worker.bgw_library_name, "idem_relay", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "relay_main", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "idem relay for database %s", database);
	strlcpy(worker.bgw_type, "idem relay", sizeof(worker.bgw_type));
	worker.bgw_main_arg = Int32GetDatum(index);
	strlcpy(worker.bgw_extra, database, sizeof(worker.bgw_extra));
	RegisterBackgroundWorker(&worker);
}

/*
 * Reserves the shared memory and registers the workers.  Called in the
 * postmaster, while shared_preload_libraries is processed.
 */
void
idem_shmem_init(void)
{
	ListCell   *cell;
	int			index = 0;

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;

	foreach(cell, idem_database_list())
		register_relay(index++, lfirst(cell));
}

/* Whether the server started with the library preloaded. */
bool
idem_preloaded(void)
{
	return shared != NULL;
}

/* The relay of this session's database; NULL: none has run. */
IdemRelay *
idem_my_relay(void)
{
	if (shared == NULL || !OidIsValid(MyDatabaseId))
		return NULL;
	for (int i = 0; i < shared->nrelays; i++)
		if (shared->relay[i].database == MyDatabaseId)
			return &shared->relay[i];
	return NULL;
}

/* This backend's entry for a transaction that is about to commit, or NULL. */
IdemCommitting *
idem_my_committing(void)
{
	if (shared == NULL || MyProcNumber < 0 || MyProcNumber >= shared->nbackends)
		return NULL;
	return &shared->committing[MyProcNumber];
}

/*
 * Wakes a worker that may be asleep.  Neither allocates nor raises, so that it
 * can be called after a commit.
 */
void
idem_relay_wake(IdemRelay *relay)
{
	Latch	   *latch;

	if (pg_atomic_exchange_u32(&relay->woken, 1) != 0)
		return;					/* woken already, and not yet looking */

	SpinLockAcquire(&relay->mutex);
	latch = relay->latch;
	SpinLockRelease(&relay->mutex);

	/* The latch of a PGPROC stays one: at worst its next owner wakes in vain. */
	if (latch != NULL)
		SetLatch(latch);
}
