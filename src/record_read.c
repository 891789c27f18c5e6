/*-------------------------------------------------------------------------
 *
 * record_read.c
 *		Idempotency records: looking at one, and locking it.
 *
 * A record is read straight through the primary key, as the checks of foreign
 * keys do it: it is one row of a table that only idem writes, and an executor
 * started for it would cost more than all else that a replay does.  Where another
 * transaction is at the row, the server's own statement decides what it means at
 * the caller's isolation level.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "record_statement.h"
#include "record_store.h"

/*
 * Locks on keys are transaction-scoped advisory locks of a class of their own:
 * users' advisory locks have 1 or 2 in this field of the tag.
 */
#define KEY_LOCK_CLASS	0x1de

#define SELECT_AND_LOCK \
	"SELECT * FROM idem.idempotency WHERE principal_id OPERATOR(pg_catalog.=) $1" \
	" AND idempotency_key OPERATOR(pg_catalog.=) $2 FOR NO KEY UPDATE"

/* Whether two byte strings are there and equal. */
bool
record_same_bytes(const bytea *a, const bytea *b)
{
	return a != NULL && b != NULL &&
		VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* ---- the row ---- */

/*
 * Finds the version of a record that a snapshot shows, by the primary key; false:
 * none.  Both of its columns have collation "C", as the scan keys say.  The lock
 * on the index is not kept: REINDEX, which has one on the table, would wait for it
 * while the write that comes next waits for REINDEX.
 */
static bool
find_version(Relation table, const RecordKey *key, Snapshot snapshot, TupleTableSlot *slot)
{
	Relation	index = index_open(RelationGetPrimaryKeyIndex(table, false), AccessShareLock);
	IndexScanDesc scan = index_beginscan(table, index, snapshot, NULL, 2, 0);
	ScanKeyData keys[2];
	bool		found;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(key->principal_id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(key->idempotency_key));
	index_rescan(scan, keys, 2, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	index_endscan(scan);
	index_close(index, AccessShareLock);
	return found;
}

/* Takes over the row in a slot. */
static void
read_slot(TupleTableSlot *slot, RecordRow *row)
{
	record_row_read(ExecCopySlotHeapTuple(slot), slot->tts_tupleDescriptor, row);
}

/*
 * Reads the row that a new snapshot shows; what was written before is seen.  The
 * snapshot is taken when the table is locked: an older one does not show rows that
 * ALTER TABLE has written anew in the meantime.
 */
static bool
look(const RecordKey *key, Snapshot (*take_snapshot) (void), RecordRow *row)
{
	Relation	table = table_open(record_relation("idempotency"), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(table, NULL);

	CommandCounterIncrement();
	PushActiveSnapshot(take_snapshot());
	if (find_version(table, key, GetActiveSnapshot(), slot))
		read_slot(slot, row);
	else
		record_row_none(row);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	table_close(table, NoLock);
	return row->facts.state != RECORD_NONE;
}

/* Reads a record without a lock; false when no row is visible. */
bool
record_look(const RecordKey *key, RecordRow *row)
{
	return look(key, GetTransactionSnapshot, row);
}

/*
 * The same with what is committed at this moment, whatever snapshot the
 * transaction has.
 */
bool
record_look_latest(const RecordKey *key, RecordRow *row)
{
	return look(key, GetLatestSnapshot, row);
}

/* how it went to lock a row without waiting */
typedef enum RowLock
{
	ROW_LOCKED,
	ROW_ABSENT,
	ROW_BUSY					/* another transaction is, or was, at it */
} RowLock;

/*
 * Locks and reads the version of a record that the transaction's snapshot shows,
 * if it is the last one and nobody else holds it.
 */
static RowLock
lock_version(const RecordKey *key, RecordRow *row)
{
	Relation	table = table_open(record_relation("idempotency"), RowShareLock);
	TupleTableSlot *slot = table_slot_create(table, NULL);
	RowLock		result = ROW_ABSENT;
	TM_FailureData failure;

	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	record_row_none(row);
	if (find_version(table, key, GetActiveSnapshot(), slot))
	{
		ItemPointerData tid = slot->tts_tid;

		result = ROW_BUSY;
		if (table_tuple_lock(table, &tid, GetActiveSnapshot(), slot, GetCurrentCommandId(false),
							 LockTupleNoKeyExclusive, LockWaitSkip, 0, &failure) == TM_Ok)
		{
			result = ROW_LOCKED;
			read_slot(slot, row);
			row->tid = slot->tts_tid;
		}
	}
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	table_close(table, NoLock);
	return result;
}

/*
 * Locks and reads a record: at once where nobody else is at it, else by a
 * statement, which waits or not as it says.
 */
static bool
lock_row(SPIPlanPtr *plan, const char *sql, const RecordKey *key, RecordRow *row)
{
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];
	RowLock		lock = XactReadOnly ? ROW_BUSY : lock_version(key, row);

	if (lock != ROW_BUSY)
		return lock == ROW_LOCKED;

	record_row_none(row);
	values[0] = PointerGetDatum(key->principal_id);
	values[1] = PointerGetDatum(key->idempotency_key);
	if (record_run(plan, sql, 2, types, values, NULL, SPI_OK_SELECT) == 0)
		return false;
	record_row_read(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, row);
	return true;
}

/* Locks and reads a record's row, if no other transaction holds it. */
bool
record_try_lock_row(const RecordKey *key, RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	return lock_row(&plan, SELECT_AND_LOCK " SKIP LOCKED", key, row);
}

/* Locks and reads a record's row, waiting for whoever holds it. */
bool
record_lock_row(const RecordKey *key, RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	return lock_row(&plan, SELECT_AND_LOCK, key, row);
}

/* ---- the key ---- */

static void
key_tag(const RecordKey *key, LOCKTAG *tag)
{
	uint64		hash;

	hash = hash_bytes_extended((unsigned char *) VARDATA_ANY(key->principal_id),
							   VARSIZE_ANY_EXHDR(key->principal_id), 0);
	hash = hash_bytes_extended((unsigned char *) VARDATA_ANY(key->idempotency_key),
							   VARSIZE_ANY_EXHDR(key->idempotency_key), hash);
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, KEY_LOCK_CLASS);
}

/*
 * Takes the lock on (principal, key) until the end of the transaction, without
 * waiting.  It stands for a row that others can't see yet.  Two keys of one
 * hash only make one of them hear IN_PROGRESS.
 */
bool
record_try_lock_key(const RecordKey *key)
{
	LOCKTAG		tag;

	key_tag(key, &tag);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Gives the lock back, where nothing was written under it.  An earlier claim of
 * the transaction keeps its own.
 */
void
record_unlock_key(const RecordKey *key)
{
	LOCKTAG		tag;

	key_tag(key, &tag);
	LockRelease(&tag, ExclusiveLock, false);
}
