/*-------------------------------------------------------------------------
 *
 * claim.c
 *		A claim, one statement at a time: look, lock the key, lock or insert the
 *		row, decide again, write.
 *
 * This follows src/idem_claim.c; whatever else happens in the world happens
 * between two of its steps.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <string.h>

#define MAX_PASSES		10

/* Applies the rules to the row as it was read last. */
static RecordAction
decide(World *world, Worker *worker)
{
	int			hash = worker->stale ? worker->row.hash : worker->hash;

	worker->decision = rules_claim(&worker->row, &worker->claim, hash);
	TRACE(world, "worker %d sees %s (attempt %lld, lease until %.2f): %s",
		  (int) (worker - world->workers), state_name(worker->row.facts.state),
		  (long long) worker->row.facts.attempt, ticks(worker->row.facts.lease_expires_at),
		  outcome_name(worker->decision.outcome));
	return worker->decision.action;
}

static void
claimed(World *world, Worker *worker)
{
	check_answer(world, worker);
	worker->pc = PC_CLAIMED;
}

static void
hidden(World *world, Worker *worker)
{
	worker->decision = record_rules_claim_hidden();
	worker->row.facts.state = RECORD_NONE;
	TRACE(world, "worker %d: the row is hidden, IN_PROGRESS", (int) (worker - world->workers));
	claimed(world, worker);
}

/* The transaction can't go on: 40001, or what an error comes to. */
static void
failed(World *world, Worker *worker, const char *why)
{
	TRACE(world, "worker %d rolls back: %s", (int) (worker - world->workers), why);
	store_abort(&world->store, worker->tx);
	worker->tx = NO_TX;
	worker->pc = PC_IDLE;
}

/* Looks and decides; false: the claim has ended. */
static bool
look(World *world, Worker *worker, bool latest)
{
	StoreResult result = latest
		? store_look_latest(&world->store, worker->tx, worker->key, &worker->row)
		: store_look(&world->store, worker->tx, worker->key, &worker->row);

	if (result == STORE_SERIALIZATION)
	{
		failed(world, worker, "its snapshot is too old");
		return false;
	}
	if (worker->stale && !record_rules_stale(&worker->row.facts, worker->claim.now))
	{
		failed(world, worker, "nothing is stale");
		return false;
	}
	if (decide(world, worker) == RECORD_READ_ONLY)
	{
		claimed(world, worker);
		return false;
	}
	return true;
}

static void
begin_claim(World *world, Worker *worker)
{
	const Config *config = &world->config;

	memset(&worker->claim, 0, sizeof(worker->claim));
	worker->claim.now = server_now(world);
	worker->claim.lease = config->lease;
	worker->claim.call_timeout = config->style[worker->key] == STYLE_CLAIM_CALL && !worker->stale
		? config->timeout : RECORD_TIME_UNSET;
	worker->claim.dedup_window = config->window[worker->key];
	worker->claim.call_margin = config->margin;
	worker->claim.record_retention = config->record_retention;
	worker->claim.max_tries = config->max_tries;
	worker->function_real = world->real;
	worker->key_locked = false;
	worker->passes = 0;
	worker->pc = PC_LOOK;
}

static void
lock_key(World *world, Worker *worker)
{
	if (FAULT != FAULT_no_key_lock && !worker->key_locked)
		worker->key_locked = store_try_lock_key(&world->store, worker->tx, worker->key);
	if (!worker->key_locked && FAULT != FAULT_no_key_lock)
	{
		TRACE(world, "worker %d can't have the key's lock", (int) (worker - world->workers));
		worker->pc = PC_LOOK_REFUSED;
		if (worker->stale)
			failed(world, worker, "it skips what is locked");
	}
	else if (worker->decision.action == RECORD_INSERT)
		worker->pc = FAULT == FAULT_no_second_look ? PC_INSERT : PC_LOOK_LATEST;
	else
		worker->pc = PC_LOCK_ROW;
}

/*
 * With the key's lock nobody else can make, take over or delete the row: what
 * is seen now stays.  A row that the transaction's snapshot does not show
 * can't be worked with.
 */
static void
look_latest(World *world, Worker *worker)
{
	Row			own;

	if (!look(world, worker, true))
		return;
	if (worker->decision.action == RECORD_INSERT)
		worker->pc = PC_INSERT;
	else if (store_look(&world->store, worker->tx, worker->key, &own) != STORE_OK)
		failed(world, worker, "40001");
	else
		worker->pc = PC_LOCK_ROW;
}

/* Draws the number of an attempt that is won. */
static int64_t
draw_attempt(World *world, const Worker *worker)
{
	int64_t		attempt = FAULT == FAULT_attempt_plus_one
		? worker->row.facts.attempt + 1 : ++world->attempts;

	check_drawn(world, worker->key, attempt);
	return attempt;
}

/* Starts a new record in the row at hand; false: the world has had enough. */
static bool
new_record(World *world, Worker *worker)
{
	Row		   *row = &worker->row;
	int			insertion = row->insertion;
	int64_t		attempt = row->facts.attempt;

	if (world->nrecords == MAX_RECORDS)
	{
		failed(world, worker, "the simulation has no more records");
		return false;
	}
	memset(row, 0, sizeof(*row));
	row->present = true;
	row->insertion = insertion;
	row->record = world->nrecords++;
	row->hash = worker->hash;
	row->facts.attempt = attempt;
	row->facts.response_expires_at = RECORD_TIME_UNSET;
	row->first_call_real = RECORD_TIME_UNSET;
	world->records[row->record] = (Witness) {
		.used = true, .key = worker->key, .hash = worker->hash,
		.first_call_real = RECORD_TIME_UNSET,
	};
	return true;
}

/* Puts what the rules say of a new owner into the row at hand. */
static void
own(World *world, Worker *worker)
{
	const RecordDecision *decision = &worker->decision;
	RecordFacts *facts = &worker->row.facts;

	worker->row.claim_xid = world->store.txs[worker->tx].xid;
	facts->state = RECORD_IN_PROGRESS;
	facts->attempt = draw_attempt(world, worker);
	facts->tries = decision->tries;
	facts->yielded = false;
	facts->claimed_at = worker->claim.now;
	facts->lease_expires_at = decision->lease_expires_at;
	facts->call_started_at = decision->call_started_at;
	facts->call_deadline = decision->call_deadline;
	facts->dedup_until = decision->dedup_until;
	facts->expires_at = decision->expires_at;
	if (decision->marks_call)
	{
		worker->row.call_xid = worker->row.claim_xid;
		if (!is_set(worker->row.first_call_real))
			worker->row.first_call_real = worker->function_real;
	}
}

static void
insert(World *world, Worker *worker)
{
	Row			before = worker->row;

	if (!new_record(world, worker))
		return;
	own(world, worker);
	switch (store_insert(&world->store, worker->tx, worker->key, &worker->row))
	{
		case STORE_OK:
			claimed(world, worker);
			return;
		case STORE_SERIALIZATION:
			failed(world, worker, "40001");
			return;
		case STORE_LOCKED:
			broke(world, INVARIANT_never_waits,
				  "worker %d's insert has to wait for another transaction",
				  (int) (worker - world->workers));
			return;
		default:
			worker->row = before;
			worker->pc = PC_LOOK;
			if (++worker->passes == MAX_PASSES)
				hidden(world, worker);
	}
}

static void
lock_row(World *world, Worker *worker)
{
	Row			locked;

	switch (store_lock_row(&world->store, worker->tx, worker->key, &locked))
	{
		case STORE_OK:
			if (FAULT != FAULT_no_redecide)
				worker->row = locked;
			worker->pc = PC_WRITE;
			break;
		case STORE_SERIALIZATION:
			failed(world, worker, "40001");
			break;
		default:
			worker->pc = PC_LOOK_LOCKED;
			if (worker->stale)
				failed(world, worker, "it skips what is locked");
	}
}

/* The row was locked, or is gone. */
static void
look_locked(World *world, Worker *worker)
{
	if (!look(world, worker, false))
		return;
	if (worker->row.present)
		hidden(world, worker);
	else if (++worker->passes == MAX_PASSES)
		hidden(world, worker);
	else
		worker->pc = PC_LOOK;
}

/* Decides on the row that is locked now, and writes. */
static void
write_locked(World *world, Worker *worker)
{
	if (worker->stale && !record_rules_stale(&worker->row.facts, worker->claim.now))
	{
		failed(world, worker, "it is stale no more");
		return;
	}
	if (FAULT != FAULT_no_redecide)
		decide(world, worker);
	switch (worker->decision.action)
	{
		case RECORD_REPLACE:
			if (!new_record(world, worker))
				return;
			own(world, worker);
			break;
		case RECORD_TAKE_OVER:
			own(world, worker);
			break;
		case RECORD_SET_UNKNOWN:
			worker->row.facts.state = RECORD_UNKNOWN;
			worker->row.facts.tries = worker->decision.tries;
			worker->row.facts.expires_at = RECORD_TIME_UNSET;
			break;
		default:
			claimed(world, worker);
			return;
	}
	store_update(&world->store, worker->tx, worker->key, &worker->row);
	claimed(world, worker);
}

/* One step of a claim. */
void
claim_step(World *world, Worker *worker)
{
	switch (worker->pc)
	{
		case PC_CLAIM:
			begin_claim(world, worker);
			break;
		case PC_LOOK:
			if (look(world, worker, false))
				worker->pc = PC_LOCK_KEY;
			break;
		case PC_LOCK_KEY:
			lock_key(world, worker);
			break;
		case PC_LOOK_REFUSED:
			if (look(world, worker, false))
				hidden(world, worker);
			break;
		case PC_LOOK_LATEST:
			look_latest(world, worker);
			break;
		case PC_INSERT:
			insert(world, worker);
			break;
		case PC_LOCK_ROW:
			lock_row(world, worker);
			break;
		case PC_LOOK_LOCKED:
			look_locked(world, worker);
			break;
		default:
			write_locked(world, worker);
			break;
	}
	if (worker->pc == PC_CLAIMED && worker->key_locked &&
		worker->decision.action == RECORD_READ_ONLY)
		store_unlock_key(&world->store, worker->tx, worker->key);
}
