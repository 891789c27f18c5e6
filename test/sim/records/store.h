/*-------------------------------------------------------------------------
 *
 * store.h
 *		A small multi-version store that behaves as PostgreSQL does to records.
 *
 * Transactions read snapshots (of each statement under READ COMMITTED, of the
 * first one under REPEATABLE READ), lock keys and rows, write one version at a
 * time, roll back to a savepoint, prepare, commit, abort.  Nothing here knows
 * what a record means.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORDS_STORE_H
#define RECORDS_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../../src/record_rules.h"

#define MAX_KEYS		3
#define MAX_TXS			16
#define MAX_VERSIONS	8

#define NO_TX			(-1)

/* a row of idem.idempotency */
typedef struct Row
{
	bool		present;
	int			insertion;		/* which insert made the row */
	int			record;			/* what resource_id stands for */
	int			hash;
	int			claim_xid;
	int			call_xid;		/* 0: none */
	int64_t		first_call_real;	/* not of the table: when a call was marked first, by real time */
	int64_t		latest_claim;	/* not of the table: greatest claimed_at of its attempts */
	int64_t		response;
	RecordFacts facts;
} Row;

/* business rows and events that a transaction has written */
typedef struct Business
{
	int			record;			/* -1: none */
	int			state;			/* of the business row; 0: not written */
	int			events;
} Business;

typedef struct Tx
{
	bool		open;
	bool		prepared;
	bool		repeatable_read;
	int64_t		snapshot;		/* commit number; -1: not taken yet */
	int			xid;
	Business	business;

	/* what rolling back to the savepoint brings back */
	bool		savepoint;
	Business	saved_business;
	struct
	{
		bool		writes;
		bool		dirty;
		bool		locks_key;
		Row			pending;
	}			saved[MAX_KEYS];
} Tx;

typedef struct Key
{
	struct
	{
		int64_t		committed;	/* commit number */
		Row			row;
	}			versions[MAX_VERSIONS];
	int			newest;
	int			key_lock;		/* transaction that holds the key's lock */
	int			row_lock;		/* transaction that holds the row's lock, or inserts it */
	bool		dirty;			/* it has written */
	Row			pending;
} Key;

typedef struct Store
{
	int64_t		commits;
	int			xids;
	int			insertions;
	Key			keys[MAX_KEYS];
	Tx			txs[MAX_TXS];
} Store;

/* how a statement ended */
typedef enum StoreResult
{
	STORE_OK,
	STORE_NO_ROW,				/* or, of an insert: there is a row */
	STORE_LOCKED,				/* another transaction holds the row */
	STORE_SERIALIZATION,		/* 40001 */
} StoreResult;

extern void store_init(Store *store);
extern int	store_begin(Store *store, bool repeatable_read);
extern void store_savepoint(Store *store, int tx);
extern void store_rollback_to(Store *store, int tx);
extern void store_abort(Store *store, int tx);
extern void store_prepare(Store *store, int tx);
extern void store_commit(Store *store, int tx);
extern void store_forget(Store *store, int key);

extern StoreResult store_look(Store *store, int tx, int key, Row *row);
extern StoreResult store_look_latest(Store *store, int tx, int key, Row *row);
extern bool store_try_lock_key(Store *store, int tx, int key);
extern void store_unlock_key(Store *store, int tx, int key);
extern StoreResult store_lock_row(Store *store, int tx, int key, Row *row);
extern StoreResult store_insert(Store *store, int tx, int key, const Row *row);
extern void store_update(Store *store, int tx, int key, const Row *row);
extern void store_delete(Store *store, int tx, int key);

/* The newest committed version. */
static inline const Row *
store_committed(const Store *store, int key)
{
	return &store->keys[key].versions[store->keys[key].newest].row;
}

/* Whether a transaction has written a key's row and not ended. */
static inline bool
store_writes(const Store *store, int tx, int key)
{
	return store->keys[key].row_lock == tx && store->keys[key].dirty;
}

#endif							/* RECORDS_STORE_H */
