/*-------------------------------------------------------------------------
 *
 * owner.c
 *		What the owner of a record calls: before_call, complete, mark_unknown, yield.
 *
 * Each waits for the row, takes the time, asks the rules, writes.  A refusal is
 * an error: the whole transaction rolls back.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

static int
number(const World *world, const Worker *worker)
{
	return (int) (worker - world->workers);
}

static const char *
function_name(Function function)
{
	static const char *const names[] = {"nothing", "before_call", "complete", "mark_unknown", "yield"};

	return names[function];
}

/* Begins a function, in a transaction of its own unless told otherwise. */
void
owner_call(World *world, Worker *worker, Function function)
{
	if (!worker->same_transaction)
	{
		worker->tx = store_begin(&world->store, worker->repeatable_read);
		if (worker->tx == NO_TX)
			return;				/* too many connections: again later */
	}
	worker->function = function;
	worker->function_real = world->real;
	worker->waited_for = 0;
	worker->pc = PC_CALL_ROW;
	TRACE(world, "worker %d calls %s of attempt %lld", number(world, worker),
		  function_name(function), (long long) worker->attempt);
}

/* The transaction is gone; the owner still is one, as far as it knows. */
static void
rolled_back(World *world, Worker *worker, const char *why)
{
	TRACE(world, "worker %d rolls %s back: %s", number(world, worker),
		  function_name(worker->function), why);
	store_abort(&world->store, worker->tx);
	worker->tx = NO_TX;
	worker->function = FUNCTION_NONE;
	worker->pc = worker->same_transaction ? PC_IDLE : PC_WORK;
}

static void
refused(World *world, Worker *worker, RecordVerdict verdict, Random *random)
{
	if (FAULT == FAULT_zombie_goes_on && worker->function == FUNCTION_COMPLETE)
	{
		worker->changed = true;
		worker->pc = PC_BUSINESS;
		return;
	}
	worker->gave_up = true;
	rolled_back(world, worker, verdict_name(verdict));
	if (random_chance(random, 500))
		worker->pc = PC_IDLE;
}

static RecordVerdict
ask_rules(World *world, Worker *worker, const Row *row)
{
	const RecordFacts *facts = &row->facts;
	RecordCall	call;

	switch (worker->function)
	{
		case FUNCTION_BEFORE_CALL:
			call.now = worker->now;
			call.timeout = worker->timeout;
			call.dedup_window = worker->window;
			call.call_margin = world->config.margin;
			call.max_tries = world->config.max_tries;
			return rules_before_call(row, worker->attempt, &call, &worker->mark);
		case FUNCTION_COMPLETE:
			return rules_complete(row, worker->attempt, worker->response, worker->now);
		case FUNCTION_MARK_UNKNOWN:
			return record_rules_mark_unknown(facts, worker->attempt, worker->now);
		default:
			return record_rules_yield(facts, worker->attempt, world->config.max_tries, worker->now);
	}
}

static void
mark_call(World *world, Worker *worker, Row *row)
{
	row->facts.lease_expires_at = worker->mark.lease_expires_at;
	row->facts.call_started_at = worker->mark.call_started_at;
	row->facts.call_deadline = worker->mark.call_deadline;
	row->facts.dedup_until = worker->mark.dedup_until;
	row->facts.expires_at = worker->mark.expires_at;
	row->facts.yielded = false;
	row->call_xid = world->store.txs[worker->tx].xid;
	if (!is_set(row->first_call_real))
		row->first_call_real = world->real;
}

static void
complete(World *world, Worker *worker, Row *row)
{
	const Config *config = &world->config;

	if (row->call_xid == world->store.txs[worker->tx].xid)
		broke(world, INVARIANT_transitions, "a transaction that marked a call completes it");
	if (config->style[worker->key] != STYLE_LOCAL && worker->left &&
		(worker->answer == ANSWER_APPROVED) != (world->records[worker->record].captures > 0))
		broke(world, INVARIANT_verdicts_true, "attempt %lld's answer is not what the acquirer did",
			  (long long) worker->attempt);
	if (row->facts.state == RECORD_UNKNOWN)
		SEEN(late_completion);
	else if (row->facts.lease_expires_at <= worker->now)
		SEEN(over_completion);
	row->facts.state = RECORD_COMPLETED;
	row->facts.has_response = true;
	row->facts.verdict = 0;
	row->response = worker->response;
	row->facts.response_expires_at = worker->now + config->response_retention;
	row->facts.expires_at = worker->now + config->record_retention;
}

/* Carries out what the rules allow. */
static void
write(World *world, Worker *worker, Row *row)
{
	switch (worker->function)
	{
		case FUNCTION_BEFORE_CALL:
			mark_call(world, worker, row);
			break;
		case FUNCTION_COMPLETE:
			complete(world, worker, row);
			break;
		case FUNCTION_MARK_UNKNOWN:
			row->facts.state = RECORD_UNKNOWN;
			row->facts.unknown_at = worker->now;
			row->facts.expires_at = RECORD_TIME_UNSET;
			break;
		default:
			row->facts.lease_expires_at = worker->now;
			row->facts.yielded = true;
	}
	store_update(&world->store, worker->tx, worker->key, row);
}

/* Waits for the row, and does what the function does. */
void
owner_row(World *world, Worker *worker, Random *random)
{
	Row			row;
	RecordVerdict verdict;

	switch (store_lock_row(&world->store, worker->tx, worker->key, &row))
	{
		case STORE_LOCKED:
			SEEN(lock_wait);
			if (worker->waited_for == 0)
				worker->waited_for = row.insertion;
			if (random_chance(random, 50))
			{
				SEEN(lock_timeout);
				rolled_back(world, worker, "55P03");
			}
			return;
		case STORE_SERIALIZATION:
			rolled_back(world, worker, "40001");
			return;
		default:
			break;
	}
	if (row.present && worker->waited_for != 0 && row.insertion != worker->waited_for)
	{
		SEEN(row_replaced);
		row.facts.state = RECORD_NONE;	/* the statement's snapshot did not show it */
	}

	worker->now = server_now(world);	/* after the wait */
	verdict = ask_rules(world, worker, &row);
	seen.verdicts[SEEN_BEFORE_CALL + worker->function - FUNCTION_BEFORE_CALL][verdict]++;
	TRACE(world, "worker %d's %s finds %s (attempt %lld): %s", number(world, worker),
		  function_name(worker->function), state_name(row.facts.state),
		  (long long) row.facts.attempt, verdict_name(verdict));
	if (verdict != RECORD_OK && verdict != RECORD_REPEAT)
	{
		refused(world, worker, verdict, random);
		return;
	}
	check_owner(world, worker, function_name(worker->function));
	worker->changed = verdict == RECORD_OK;
	if (worker->changed)
		write(world, worker, &row);
	worker->pc = worker->function == FUNCTION_COMPLETE || worker->function == FUNCTION_MARK_UNKNOWN
		? PC_BUSINESS : PC_COMMIT;
}

/* Writes the business row and the event that go with a completion. */
void
owner_business(World *world, Worker *worker)
{
	Business   *business = &world->store.txs[worker->tx].business;

	worker->pc = PC_COMMIT;
	if (!worker->changed && FAULT != FAULT_repeat_emits)
		return;
	business->record = worker->record;
	if (worker->function == FUNCTION_COMPLETE)
	{
		business->state = BUSINESS_DONE;
		business->events++;
	}
	else
		business->state = BUSINESS_UNCERTAIN;
	TRACE(world, "worker %d writes its business rows", number(world, worker));
}
