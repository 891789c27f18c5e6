/*-------------------------------------------------------------------------
 *
 * store.c
 *		A small multi-version store that behaves as PostgreSQL does to records.
 *
 *-------------------------------------------------------------------------
 */
#include "store.h"

#include <assert.h>
#include <string.h>

#include "faults.h"

void
store_init(Store *store)
{
	memset(store, 0, sizeof(*store));
	for (int key = 0; key < MAX_KEYS; key++)
	{
		store->keys[key].key_lock = NO_TX;
		store->keys[key].row_lock = NO_TX;
	}
}

/* Begins a transaction; NO_TX when there are too many. */
int
store_begin(Store *store, bool repeatable_read)
{
	for (int tx = 0; tx < MAX_TXS; tx++)
	{
		Tx		   *this = &store->txs[tx];

		if (this->open)
			continue;
		this->open = true;
		this->prepared = false;
		this->savepoint = false;
		this->repeatable_read = repeatable_read;
		this->snapshot = -1;
		this->xid = ++store->xids;
		this->business = (Business) {.record = -1};
		return tx;
	}
	return NO_TX;
}

/* Sets the savepoint, or moves it here. */
void
store_savepoint(Store *store, int tx)
{
	Tx		   *this = &store->txs[tx];

	this->savepoint = true;
	this->saved_business = this->business;
	for (int key = 0; key < MAX_KEYS; key++)
	{
		const Key  *at = &store->keys[key];

		this->saved[key].writes = at->row_lock == tx;
		this->saved[key].dirty = at->dirty;
		this->saved[key].locks_key = at->key_lock == tx;
		this->saved[key].pending = at->pending;
	}
}

/* Undoes what was done since the savepoint, locks included. */
void
store_rollback_to(Store *store, int tx)
{
	Tx		   *this = &store->txs[tx];

	assert(this->savepoint);
	this->business = this->saved_business;
	for (int key = 0; key < MAX_KEYS; key++)
	{
		Key		   *at = &store->keys[key];

		if (at->key_lock == tx && !this->saved[key].locks_key)
			at->key_lock = NO_TX;
		if (at->row_lock != tx)
			continue;
		at->pending = this->saved[key].pending;
		at->dirty = this->saved[key].writes && this->saved[key].dirty;
		if (!this->saved[key].writes)
			at->row_lock = NO_TX;
	}
}

static void
release(Store *store, int tx)
{
	for (int key = 0; key < MAX_KEYS; key++)
	{
		Key		   *at = &store->keys[key];

		if (at->key_lock == tx)
			at->key_lock = NO_TX;
		if (at->row_lock == tx)
		{
			at->row_lock = NO_TX;
			at->dirty = false;
		}
	}
	store->txs[tx].open = false;
}

void
store_abort(Store *store, int tx)
{
	release(store, tx);
}

/* A prepared transaction keeps its locks and survives a crash. */
void
store_prepare(Store *store, int tx)
{
	store->txs[tx].prepared = true;
}

void
store_commit(Store *store, int tx)
{
	int64_t		commit = store->commits + 1;

	for (int key = 0; key < MAX_KEYS; key++)
	{
		Key		   *at = &store->keys[key];

		if (!store_writes(store, tx, key))
			continue;
		store->commits = commit;
		at->newest = (at->newest + 1) % MAX_VERSIONS;
		at->versions[at->newest].committed = commit;
		at->versions[at->newest].row = at->pending;
	}
	release(store, tx);
}

/* Loses the newest version of a key, as a crash without a flush would. */
void
store_forget(Store *store, int key)
{
	Key		   *at = &store->keys[key];

	at->newest = (at->newest + MAX_VERSIONS - 1) % MAX_VERSIONS;
}

/* Takes the snapshot of a statement. */
static int64_t
snapshot(Store *store, int tx)
{
	Tx		   *this = &store->txs[tx];

	if (!this->repeatable_read)
		return store->commits;
	if (this->snapshot < 0)
		this->snapshot = store->commits;
	return this->snapshot;
}

/* The version that a snapshot shows, or NULL: it is no longer kept. */
static const Row *
visible(const Key *key, int64_t snapshot)
{
	for (int back = 0; back < MAX_VERSIONS; back++)
	{
		int			version = (key->newest + MAX_VERSIONS - back) % MAX_VERSIONS;

		if (key->versions[version].committed <= snapshot)
			return &key->versions[version].row;
	}
	return NULL;
}

/* Whether a row has a version newer than a transaction's snapshot. */
static bool
changed_since(Store *store, int tx, int key)
{
	const Key  *at = &store->keys[key];

	return FAULT != FAULT_lost_update &&
		at->versions[at->newest].committed > snapshot(store, tx);
}

/* Gives out a row, with what only the reading transaction can say of it. */
static StoreResult
read_row(Store *store, int tx, const Row *from, Row *row)
{
	*row = *from;
	if (!from->present)
	{
		row->facts.state = RECORD_NONE;
		return STORE_NO_ROW;
	}
	row->facts.claimed_here = from->claim_xid == store->txs[tx].xid;
	row->facts.call_marked_here = from->call_xid == store->txs[tx].xid;
	return STORE_OK;
}

/* Reads a row without a lock. */
StoreResult
store_look(Store *store, int tx, int key, Row *row)
{
	const Row  *seen;

	if (store_writes(store, tx, key))
		return read_row(store, tx, &store->keys[key].pending, row);
	seen = visible(&store->keys[key], snapshot(store, tx));
	return seen ? read_row(store, tx, seen, row) : STORE_SERIALIZATION;
}

/* Reads a row as it is now, whatever the transaction's snapshot shows. */
StoreResult
store_look_latest(Store *store, int tx, int key, Row *row)
{
	if (store_writes(store, tx, key))
		return read_row(store, tx, &store->keys[key].pending, row);
	return read_row(store, tx, store_committed(store, key), row);
}

/* Takes a key's lock, without waiting. */
bool
store_try_lock_key(Store *store, int tx, int key)
{
	Key		   *at = &store->keys[key];

	if (at->key_lock != NO_TX && at->key_lock != tx)
		return false;
	at->key_lock = tx;
	return true;
}

void
store_unlock_key(Store *store, int tx, int key)
{
	if (store->keys[key].key_lock == tx)
		store->keys[key].key_lock = NO_TX;
}

/*
 * Locks and reads a row.  STORE_LOCKED: another transaction holds it; whoever
 * waits tries again.
 */
StoreResult
store_lock_row(Store *store, int tx, int key, Row *row)
{
	Key		   *at = &store->keys[key];

	if (store_writes(store, tx, key))
		return read_row(store, tx, &at->pending, row);
	switch (store_look(store, tx, key, row))
	{
		case STORE_NO_ROW:
			return STORE_NO_ROW;
		case STORE_SERIALIZATION:
			return STORE_SERIALIZATION;
		default:
			break;
	}
	if (at->row_lock != NO_TX && at->row_lock != tx)
		return STORE_LOCKED;
	if (changed_since(store, tx, key))
		return STORE_SERIALIZATION;
	at->row_lock = tx;
	at->dirty = false;
	return STORE_OK;
}

/*
 * Inserts a row unless there is one (STORE_NO_ROW).  STORE_LOCKED: it would
 * have to wait for another transaction that inserts, changes or deletes it.  A
 * row that is only locked is there, and nothing to wait for.
 */
StoreResult
store_insert(Store *store, int tx, int key, const Row *row)
{
	Key		   *at = &store->keys[key];

	if (at->row_lock != NO_TX && at->row_lock != tx && at->dirty)
		return STORE_LOCKED;
	if (store_committed(store, key)->present)
		return changed_since(store, tx, key) ? STORE_SERIALIZATION : STORE_NO_ROW;
	at->row_lock = tx;
	at->dirty = true;
	at->pending = *row;
	at->pending.present = true;
	at->pending.insertion = ++store->insertions;
	return STORE_OK;
}

/* Writes a row that the transaction has locked. */
void
store_update(Store *store, int tx, int key, const Row *row)
{
	Key		   *at = &store->keys[key];

	assert(at->row_lock == tx);
	at->pending = *row;
	at->dirty = true;
}

/* Deletes a row that the transaction has locked. */
void
store_delete(Store *store, int tx, int key)
{
	Row			gone = {0};

	store_update(store, tx, key, &gone);
}
