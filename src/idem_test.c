/*-------------------------------------------------------------------------
 *
 * idem_test.c
 *		Named points where a test stops or kills a process; test builds only.
 *
 * The setting idem.test_points holds a list of name=action.  Actions:
 *
 *	error	raise an error
 *	kill	SIGKILL this process
 *	exit	leave with exit code 1
 *	wait	wait for the advisory lock (7357, hashtext(name)), which the test
 *			holds for as long as the process is to stand still
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "compat.h"
#include "common/hashfn.h"
#include "idem_shared.h"
#include "idem_test.h"

#define WAIT_LOCK_CLASS		7357

static char *test_points = NULL;

/* The action set for a point; NULL: none. */
static char *
action_of(const char *name)
{
	const char *entry = test_points;
	Size		len = strlen(name);

	while (entry != NULL && *entry != '\0')
	{
		entry += strspn(entry, " ,");
		if (strncmp(entry, name, len) == 0 && entry[len] == '=')
			return pnstrdup(entry + len + 1, strcspn(entry + len + 1, " ,"));
		entry += strcspn(entry, ",");
	}
	return NULL;
}

/* Waits until a test lets go of the point's advisory lock. */
static void
wait_at(const char *name)
{
	bool		own_transaction = !IsTransactionState();
	int			lock_timeout = LockTimeout;
	uint32		hash;
	LOCKTAG		tag;

	if (own_transaction)
		StartTransactionCommand();
	/* what hashtext gives for it */
	hash = DatumGetUInt32(hash_any((const unsigned char *) name, strlen(name)));
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, WAIT_LOCK_CLASS, hash, 2);
	/* the test decides how long, not the worker's lock_timeout */
	LockTimeout = 0;
	LockAcquire(&tag, ShareLock, false, false);
	LockTimeout = lock_timeout;
	LockRelease(&tag, ShareLock, false);
	if (own_transaction)
		CommitTransactionCommand();
}

static void
test_point(const char *name)
{
	char	   *action = action_of(name);

	if (action == NULL)
		return;
	elog(LOG, "test point %s: %s", name, action);
	if (strcmp(action, "error") == 0)
		ereport(ERROR, (errmsg("test point %s", name)));
	else if (strcmp(action, "kill") == 0)
		kill(MyProcPid, SIGKILL);
	else if (strcmp(action, "exit") == 0)
		proc_exit(1);
	else if (strcmp(action, "wait") == 0)
		wait_at(name);
	else
		elog(ERROR, "unknown action \"%s\" of test point %s", action, name);
	pfree(action);
}

/* Defines the setting and makes the points find this file. */
void
idem_test_init(void)
{
	DefineCustomStringVariable("idem.test_points",
							   "Points where tests stop or kill a process.",
							   NULL,
							   &test_points,
							   "",
							   PGC_SUSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("idem");
	*(IdemTestPoint *) find_rendezvous_variable(IDEM_TEST_RENDEZVOUS) = test_point;
}
