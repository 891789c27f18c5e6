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
	if (worker->row.present && worker->row.facts.state == RECORD_IN_PROGRESS &&
		worker->row.facts.lease_expires_at == worker->claim.now)
		SEEN(boundary);
	TRACE(world, "worker %d sees %s (attempt %lld, lease until %.2f): %s",
		  (int) (worker - world->workers), state_name(worker->row.facts.state),
		  (long long) worker->row.facts.attempt, ticks(worker->row.facts.lease_expires_at),
		  outcome_name(worker->decision.outcome));
	return worker->decision.action;
}

static void
claimed(World *world, Worker *worker)
{
	seen.outcomes[worker->decision.outcome]++;
	check_answer(world, worker);
	worker->pc = PC_CLAIMED;
}

static void
hidden(World *world, Worker *worker)
{
	worker->decision = record_rules_claim_hidden();
	worker->row.facts.state = RECORD_NONE;
	SEEN(hidden);
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

static void
not_serializable(World *world, Worker *worker)
{
	SEEN(serialization);
	failed(world, worker, "40001");
}

/* Looks and decides; false: the claim has ended. */
static bool
look(World *world, Worker *worker)
{
	if (store_look(&world->store, worker->tx, worker->key, &worker->row) == STORE_SERIALIZATION)
	{
		failed(world, worker, "its snapshot is too old");
		return false;
	}
	if (decide(world, worker) == RECORD_READ_ONLY)
	{
		claimed(world, worker);
		return false;
	}
	return true;
}

/*
 * idem_claim_stale looks for a row that is stale.  It takes no lock on the key:
 * it makes no row.
 */
static void
look_stale(World *world, Worker *worker)
{
	StoreResult result = store_look(&world->store, worker->tx, worker->key, &worker->row);

	if (result == STORE_OK && record_rules_stale(&worker->row.facts, worker->claim.now))
		worker->pc = PC_LOCK_ROW;
	else
		failed(world, worker, "nothing is stale");
}

static void
begin_claim(World *world, Worker *worker)
{
	const Config *config = &world->config;

	memset(&worker->claim, 0, sizeof(worker->claim));
	worker->claim.now = server_now(world);
	worker->claim.lease = worker->lease;
	worker->claim.call_timeout = config->style[worker->key] == STYLE_CLAIM_CALL && !worker->stale
		? worker->timeout : RECORD_TIME_UNSET;
	worker->claim.dedup_window = worker->window;
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
	if (FAULT == FAULT_no_key_lock)
		worker->key_locked = true;
	else if (!worker->key_locked)
		worker->key_locked = store_try_lock_key(&world->store, worker->tx, worker->key);
	if (!worker->key_locked)
	{
		SEEN(key_lock_refused);
		TRACE(world, "worker %d can't have the key's lock", (int) (worker - world->workers));
		worker->pc = PC_LOOK_REFUSED;
	}
	else if (FAULT == FAULT_no_second_look)
		worker->pc = worker->decision.action == RECORD_INSERT ? PC_INSERT : PC_LOCK_ROW;
	else
		worker->pc = PC_LOOK_LATEST;
}

/*
 * With the key's lock nobody else makes a row: what is not there now is not
 * there at all.  A row that the transaction's snapshot does not show can't be
 * worked with.
 */
static void
look_latest(World *world, Worker *worker)
{
	Row			latest;

	(void) store_look_latest(&world->store, worker->tx, worker->key, &latest);
	if (!worker->repeatable_read)
	{
		worker->row = latest;
		if (decide(world, worker) == RECORD_READ_ONLY)
		{
			claimed(world, worker);
			return;
		}
	}
	else if (worker->row.facts.state == RECORD_NONE && latest.present)
	{
		not_serializable(world, worker);
		return;
	}
	worker->pc = worker->decision.action == RECORD_INSERT ? PC_INSERT : PC_LOCK_ROW;
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
	if (worker->claim.now > worker->row.latest_claim)
		worker->row.latest_claim = worker->claim.now;
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
			not_serializable(world, worker);
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
			not_serializable(world, worker);
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
	if (!look(world, worker))
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
	{
		RecordAction before = worker->decision.action;

		if (decide(world, worker) != before && !worker->stale)
			SEEN(redecided);
	}
	switch (worker->decision.action)
	{
		case RECORD_REPLACE:
			if (!new_record(world, worker))
				return;
			own(world, worker);
			break;
		case RECORD_TAKE_OVER:
			if (worker->stale)
				SEEN(stale_resumed);
			own(world, worker);
			break;
		case RECORD_SET_UNKNOWN:
			if (!is_set(worker->row.facts.call_started_at))
				SEEN(max_tries);
			worker->row.facts.state = RECORD_UNKNOWN;
			worker->row.facts.tries = worker->decision.tries;
			worker->row.facts.unknown_at = worker->claim.now;
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
			if (worker->stale)
				look_stale(world, worker);
			else if (look(world, worker))
				worker->pc = PC_LOCK_KEY;
			break;
		case PC_LOCK_KEY:
			lock_key(world, worker);
			break;
		case PC_LOOK_REFUSED:
			if (look(world, worker))
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
