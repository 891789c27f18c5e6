/*-------------------------------------------------------------------------
 *
 * checks.c
 *		The invariants.
 *
 * They look at what was committed, told, sent and captured, not at what the
 * rules said.  The clock may be off by jitter either way, so a time that was
 * compared at another moment is allowed twice that.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

static int64_t
tolerance(const World *world)
{
	return 2 * world->config.jitter;
}

/* An attempt number is given out. */
void
check_drawn(World *world, int key, int64_t attempt)
{
	if (attempt <= world->highest[key])
		broke(world, INVARIANT_attempts_grow, "key %d: attempt %lld after %lld",
			  key, (long long) attempt, (long long) world->highest[key]);
	else
		world->highest[key] = attempt;
}

/* A stored response is given to a client. */
static void
check_replay(World *world, const Worker *worker)
{
	const Row  *row = &worker->row;
	const Witness *record = &world->records[row->record];

	if (!worker->stale && record->hash != worker->hash)
		broke(world, INVARIANT_mismatch, "key %d: request %d hears the response to request %d",
			  worker->key, worker->hash, record->hash);
	else if (!record->answered || record->response != row->response)
		broke(world, INVARIANT_one_response, "record %d: response %lld is replayed as %lld",
			  row->record, (long long) record->response, (long long) row->response);
}

/* What a claim hears has to be true of the row that it was told of. */
void
check_answer(World *world, const Worker *worker)
{
	const RecordDecision *decision = &worker->decision;
	const RecordFacts *facts = &worker->row.facts;
	int64_t		now = worker->claim.now;
	bool		same = worker->stale || worker->row.hash == worker->hash;
	bool		is_true = true;

	switch (decision->outcome)
	{
		case RECORD_OUTCOME_IN_PROGRESS:
			is_true = facts->state == RECORD_NONE ||
				(same && facts->state == RECORD_IN_PROGRESS && facts->lease_expires_at > now);
			break;
		case RECORD_OUTCOME_ALREADY_YOURS:
			is_true = same && facts->claimed_here && facts->state == RECORD_IN_PROGRESS;
			break;
		case RECORD_OUTCOME_MISMATCH:
			is_true = !same && facts->state != RECORD_NONE &&
				(!is_set(facts->expires_at) || facts->expires_at > now);
			break;
		case RECORD_OUTCOME_REPLAY:
			check_replay(world, worker);
			is_true = facts->state == RECORD_COMPLETED && facts->response_expires_at > now;
			break;
		case RECORD_OUTCOME_RESULT_GONE:
			is_true = same && facts->state == RECORD_COMPLETED &&
				world->records[worker->row.record].response_expires_at <= server_now(world) + tolerance(world);
			break;
		case RECORD_OUTCOME_UNKNOWN:
			is_true = same && facts->state == RECORD_UNKNOWN;
			break;
		default:
			break;				/* looked at when it commits */
	}
	if (decision->retry_after < 0 ||
		(decision->outcome == RECORD_OUTCOME_UNKNOWN && decision->retry_after > 60))
		is_true = false;
	if (!is_true)
		broke(world, INVARIANT_answers_true, "key %d: %s is not true of its row, which is %s", worker->key,
			  outcome_name(decision->outcome), state_name(facts->state));
}

/* A function of the owner is allowed: the attempt has to own the record. */
void
check_owner(World *world, const Worker *worker, const char *function)
{
	const Key  *key = &world->store.keys[worker->key];
	const Row  *row = store_writes(&world->store, worker->tx, worker->key)
		? &key->pending : store_committed(&world->store, worker->key);

	if (!row->present || row->facts.attempt != worker->attempt || row->record != worker->record)
		broke(world, INVARIANT_zombies_refused, "%s of attempt %lld is allowed, attempt %lld owns the record",
			  function, (long long) worker->attempt, row->present ? (long long) row->facts.attempt : 0);
}

/*
 * An owner hears that its claim is committed.  The lease of another has to be
 * over: when the later of the two claimed, or at the latest now.
 */
void
check_told(World *world, const Worker *worker)
{
	Owner	   *owner = &world->owners[worker->key];
	int64_t		now = server_now(world);

	if (owner->attempt > worker->attempt)
	{
		if (worker->lease_expires_at > owner->claimed_at && worker->lease_expires_at > now)
			broke(world, INVARIANT_one_owner, "attempt %lld hears of its claim while attempt %lld is alive",
				  (long long) worker->attempt, (long long) owner->attempt);
		return;
	}
	if (owner->attempt != 0 && !owner->ended &&
		owner->lease_expires_at > worker->claimed_at && owner->lease_expires_at > now)
		broke(world, INVARIANT_one_owner, "attempts %lld and %lld are both alive at %.2f",
			  (long long) owner->attempt, (long long) worker->attempt, ticks(now));
	owner->attempt = worker->attempt;
	owner->claimed_at = worker->claimed_at;
	owner->lease_expires_at = worker->lease_expires_at;
	owner->ended = false;
}

/* A call leaves. */
void
check_leaves(World *world, const Worker *worker)
{
	const Row  *row = store_committed(&world->store, worker->key);
	Witness    *record = &world->records[worker->record];
	int64_t		window = world->config.window[worker->key];

	if (world->real > worker->leave_by)
		broke(world, INVARIANT_call_deadline, "attempt %lld's call leaves after its deadline",
			  (long long) worker->attempt);
	else if (!row->present || row->record != worker->record || row->facts.attempt != worker->attempt ||
			 row->facts.state != RECORD_IN_PROGRESS || !is_set(row->facts.call_started_at) ||
			 row->facts.lease_expires_at < server_now(world))
		broke(world, INVARIANT_call_deadline,
			  "attempt %lld's call leaves, its record is %s, attempt %lld, lease until %.2f, now %.2f",
			  (long long) worker->attempt, state_name(row->facts.state), (long long) row->facts.attempt,
			  ticks(row->facts.lease_expires_at), ticks(server_now(world)));
	if (++record->calls_left > 1 && !is_set(row->facts.dedup_until))
		broke(world, INVARIANT_call_once, "record %d: a call that can't be repeated leaves again",
			  worker->record);
	if (record->calls_left > 1 && is_set(row->facts.dedup_until) &&
		world->real >= record->first_call_real + window + tolerance(world))
		broke(world, INVARIANT_dedup_window, "record %d: a call leaves again after the far side forgot the key",
			  worker->record);
}

/* The acquirer takes the money. */
void
check_capture(World *world, int record)
{
	const Witness *witness = &world->records[record];

	if (witness->captures > 1)
		broke(world, INVARIANT_one_capture, "record %d: %d captures", record, witness->captures);
	if (witness->state == RECORD_COMPLETED && witness->verdict == VERDICT_NOT_APPLIED)
		broke(world, INVARIANT_verdicts_true, "record %d: captured after it was settled as not applied",
			  record);
}

/* A row is deleted, or starts a new record: it must have expired. */
static void
check_expired(World *world, int key, const Row *old, int64_t now)
{
	const RecordFacts *facts = &old->facts;

	now += tolerance(world);
	if (facts->state == RECORD_UNKNOWN)
		broke(world, INVARIANT_unknown_stays, "key %d: an UNKNOWN record is forgotten", key);
	else if (facts->state == RECORD_IN_PROGRESS &&
			 (is_set(world->records[old->record].first_call_real) ||
			  facts->lease_expires_at + world->config.record_retention > now))
		broke(world, INVARIANT_unsettled_kept, "key %d: a record in progress is forgotten", key);
	else if (facts->state == RECORD_COMPLETED && !(facts->expires_at <= now))
		broke(world, INVARIANT_one_response, "key %d: a record is forgotten before its time", key);
}

/* A row changes within one record. */
static void
check_change(World *world, int key, const Row *old, const Row *new)
{
	bool		taken_over = new->facts.attempt != old->facts.attempt;

	if (taken_over && new->facts.attempt < old->facts.attempt)
		broke(world, INVARIANT_attempts_grow, "key %d: attempt %lld follows %lld", key,
			  (long long) new->facts.attempt, (long long) old->facts.attempt);
	switch (old->facts.state)
	{
		case RECORD_UNKNOWN:
			if (taken_over || new->facts.state == RECORD_IN_PROGRESS)
				broke(world, INVARIANT_unknown_stays, "key %d: an UNKNOWN record runs again", key);
			break;
		case RECORD_COMPLETED:
			if (taken_over || new->facts.state != RECORD_COMPLETED ||
				(new->facts.has_response && new->response != old->response))
				broke(world, INVARIANT_one_response, "key %d: a completed record gets another response", key);
			break;
		default:
			if (taken_over && !old->facts.yielded && old->facts.lease_expires_at > new->latest_claim)
				broke(world, INVARIANT_one_owner, "key %d: attempt %lld takes over from %lld, alive until %.2f, at %.2f",
					  key, (long long) new->facts.attempt, (long long) old->facts.attempt,
					  ticks(old->facts.lease_expires_at), ticks(new->facts.claimed_at));
	}
}

/* Takes note of what a record is now. */
static void
witness_row(World *world, const Row *old, const Row *new)
{
	Witness    *record = &world->records[new->record];
	bool		completes = new->facts.state == RECORD_COMPLETED &&
		(old->record != new->record || old->facts.state != RECORD_COMPLETED || !old->present);

	record->inserted = true;
	record->state = new->facts.state;
	record->verdict = new->facts.verdict;
	if (is_set(new->first_call_real) && !is_set(record->first_call_real))
		record->first_call_real = new->first_call_real;
	if (!completes)
		return;
	if (record->answered)
		broke(world, INVARIANT_one_response, "record %d is completed twice", new->record);
	record->answered = true;
	record->response = new->response;
	record->response_expires_at = new->facts.response_expires_at;
}

/*
 * The owner that was told so renews, or ends, its lease; or it has lost the
 * record to another, which check_change has looked at.
 */
static void
witness_owner(World *world, int key, const Row *old, const Row *new)
{
	Owner	   *owner = &world->owners[key];

	if (owner->attempt != new->facts.attempt)
	{
		if (old->present && owner->attempt == old->facts.attempt)
			owner->ended = true;
		return;
	}
	owner->lease_expires_at = new->facts.lease_expires_at;
	owner->ended = new->facts.state != RECORD_IN_PROGRESS || new->facts.yielded;
}

static void
check_row(World *world, int key, const Row *old, const Row *new)
{
	if (!new->present)
	{
		if (old->present)
			check_expired(world, key, old, server_now(world));
		return;
	}
	if (old->present && old->record == new->record)
		check_change(world, key, old, new);
	else if (old->present)
		check_expired(world, key, old, new->facts.claimed_at);
	witness_row(world, old, new);
	witness_owner(world, key, old, new);
}

/* An event exists if and only if the record completed, and so says its business row. */
static void
check_business(World *world, int number)
{
	const Witness *record = &world->records[number];
	bool		completed = record->state == RECORD_COMPLETED && record->verdict != VERDICT_NOT_APPLIED;
	bool		settled = record->state == RECORD_COMPLETED && record->verdict == VERDICT_NOT_APPLIED;

	if (record->events != (completed ? 1 : 0) ||
		(record->business == BUSINESS_DONE) != completed ||
		(record->business == BUSINESS_VOID) != settled ||
		(record->business == BUSINESS_UNCERTAIN) != (record->state == RECORD_UNKNOWN))
		broke(world, INVARIANT_event_iff, "record %d is %s, has %d events and business row %d", number,
			  state_name(record->state), record->events, record->business);
}

/* Commits a transaction, and looks at what it did. */
void
commit_checked(World *world, int tx)
{
	Store	   *store = &world->store;
	Business	business = store->txs[tx].business;

	for (int key = 0; key < MAX_KEYS; key++)
		if (store_writes(store, tx, key))
			check_row(world, key, store_committed(store, key), &store->keys[key].pending);
	if (business.record >= 0)
	{
		Witness    *record = &world->records[business.record];

		record->events += business.events;
		if (business.state != BUSINESS_NONE)
			record->business = (BusinessState) business.state;
		check_business(world, business.record);
	}
	for (int key = 0; key < MAX_KEYS; key++)
		if (store_writes(store, tx, key) && store->keys[key].pending.present)
			check_business(world, store->keys[key].pending.record);
	store_commit(store, tx);
}
