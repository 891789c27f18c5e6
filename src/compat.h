/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between the supported major versions of the server.
 *
 * The only file that looks at PG_VERSION_NUM.  What differs is spelled the
 * newest way, so that dropping the oldest major means deleting lines here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "idem needs PostgreSQL 15 or later"
#endif

/* 16 keeps the permissions of a range table beside it */
#if PG_VERSION_NUM < 160000
#define addRTEPermissionInfo(permissions, rte) ((void) (permissions))
#else
#include "parser/parse_relation.h"
#endif

/* a macro of a function's name has to come behind its declaration */
#if PG_VERSION_NUM < 180000
#include "access/genam.h"
#include "executor/executor.h"
#include "utils/relcache.h"
#endif

/* 18 wants to know which relations of it are left after pruning */
#if PG_VERSION_NUM < 160000
#define ExecInitRangeTable(estate, table, permissions, unpruned) ExecInitRangeTable(estate, table)
#elif PG_VERSION_NUM < 180000
#define ExecInitRangeTable(estate, table, permissions, unpruned) ExecInitRangeTable(estate, table, permissions)
#endif

/* 18 counts the searches of an index scan, and knows deferrable primary keys */
#if PG_VERSION_NUM < 180000
#define index_beginscan(table, index, snapshot, instrument, nkeys, norderbys) \
	index_beginscan(table, index, snapshot, nkeys, norderbys)
#define RelationGetPrimaryKeyIndex(table, deferrable_ok) RelationGetPrimaryKeyIndex(table)
#endif

/* 18 has it before the declaration */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 16 moved the macros for varlena values into a header of their own */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 17 numbers processes from zero, and calls it so */
#if PG_VERSION_NUM < 170000
#include "storage/backendid.h"
#define MyProcNumber (MyBackendId - 1)
#endif

/* 17 lets an extension name its wait events */
#if PG_VERSION_NUM < 170000
#include "utils/wait_event.h"
#define WaitEventExtensionNew(name) PG_WAIT_EXTENSION
#endif

/* 17 took the memory context argument away in favour of a resource owner */
#if PG_VERSION_NUM < 170000
#define CreateLifelongWaitEventSet(nevents) CreateWaitEventSet(TopMemoryContext, nevents)
#else
#define CreateLifelongWaitEventSet(nevents) CreateWaitEventSet(NULL, nevents)
#endif

#endif							/* IDEM_COMPAT_H */
