/*-------------------------------------------------------------------------
 *
 * clerks.c
 *		Who works besides the application: the sweep, an operator, whoever ends
 *		prepared transactions, and the crash of the server.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

static void
clerk_rolls_back(World *world, Clerk *clerk)
{
	store_abort(&world->store, clerk->tx);
	clerk->tx = NO_TX;
	clerk->pc = 0;
}

static void
clerk_commits(World *world, Clerk *clerk)
{
	commit_checked(world, clerk->tx);
	clerk->tx = NO_TX;
	clerk->pc = 0;
}

/* The sweep sees what has expired. */
static void
sweep_look(World *world, Clerk *clerk, Random *random)
{
	Row			row;

	clerk->key = (int) random_below(random, (uint32_t) world->config.keys);
	clerk->tx = store_begin(&world->store, false);
	if (clerk->tx == NO_TX)
		return;
	clerk->now = server_now(world);
	(void) store_look(&world->store, clerk->tx, clerk->key, &row);
	clerk->seen = row.present ? rules_sweep(&row, clerk->now) : RECORD_KEEP;
	if (clerk->seen == RECORD_KEEP)
		clerk_rolls_back(world, clerk);
	else
	{
		TRACE(world, "the sweep sees key %d: %s", clerk->key,
			  clerk->seen == RECORD_DELETE ? "expired" : "a response no longer kept");
		clerk->pc = 1;
	}
}

/* It rechecks a row that it has locked, and deletes. */
static void
sweep_write(World *world, Clerk *clerk)
{
	Row			row;
	RecordSweep sweep;

	if (store_lock_row(&world->store, clerk->tx, clerk->key, &row) != STORE_OK)
	{
		clerk_rolls_back(world, clerk);
		return;
	}
	sweep = FAULT == FAULT_sweep_no_recheck ? clerk->seen : rules_sweep(&row, clerk->now);
	if (sweep != clerk->seen)
		SEEN(sweep_rechecked);
	TRACE(world, "the sweep %s key %d", sweep == RECORD_DELETE ? "deletes" :
		  sweep == RECORD_KEEP ? "keeps" : "drops the response of", clerk->key);
	clerk->pc = 2;
	switch (sweep)
	{
		case RECORD_DELETE:
			SEEN(deleted);
			store_delete(&world->store, clerk->tx, clerk->key);
			break;
		case RECORD_DROP_RESPONSE:
			SEEN(dropped);
			row.facts.has_response = false;
			row.response = 0;
			store_update(&world->store, clerk->tx, clerk->key, &row);
			break;
		default:
			clerk_rolls_back(world, clerk);
	}
}

/* One step of the sweep. */
void
sweep_step(World *world, Random *random)
{
	Clerk	   *clerk = &world->sweep;

	switch (clerk->pc)
	{
		case 0:
			sweep_look(world, clerk, random);
			break;
		case 1:
			sweep_write(world, clerk);
			break;
		default:
			TRACE(world, "the sweep commits");
			clerk_commits(world, clerk);
	}
}

/* An operator picks a record that nobody can know the outcome of. */
static void
operator_look(World *world, Clerk *clerk, Random *random)
{
	const Row  *row;

	clerk->key = (int) random_below(random, (uint32_t) world->config.keys);
	row = store_committed(&world->store, clerk->key);
	if (row->facts.state != RECORD_UNKNOWN && !random_chance(random, world->calm ? 0 : 20))
		return;
	clerk->tx = store_begin(&world->store, false);
	if (clerk->tx == NO_TX)
		return;
	clerk->pc = 1;
}

/*
 * The operator asks the acquirer, and settles.  With contrary, it says the
 * opposite where a record is settled already.
 */
static void
operator_write(World *world, Clerk *clerk, bool contrary)
{
	const Config *config = &world->config;
	Business   *business = &world->store.txs[clerk->tx].business;
	Row			row;
	RecordVerdict verdict;

	if (store_lock_row(&world->store, clerk->tx, clerk->key, &row) == STORE_LOCKED)
		return;					/* it waits */
	clerk->verdict = (world->records[row.record].captures > 0) != (contrary && row.facts.verdict != 0)
		? VERDICT_COMPLETED : VERDICT_NOT_APPLIED;
	clerk->now = server_now(world);
	verdict = rules_resolve(&row, clerk->verdict, config->grace, clerk->now);
	seen.verdicts[SEEN_RESOLVE][verdict]++;
	TRACE(world, "the operator settles key %d (%s) as %s: %s", clerk->key, state_name(row.facts.state),
		  clerk->verdict == VERDICT_COMPLETED ? "completed" : "not applied", verdict_name(verdict));
	if (verdict != RECORD_OK)
	{
		clerk_rolls_back(world, clerk);
		return;
	}

	row.facts.state = RECORD_COMPLETED;
	row.facts.has_response = true;
	row.facts.verdict = clerk->verdict;
	row.response = ++world->responses;
	row.facts.response_expires_at = clerk->now + config->response_retention;
	row.facts.expires_at = clerk->now + config->record_retention;
	store_update(&world->store, clerk->tx, clerk->key, &row);
	business->record = row.record;
	if (clerk->verdict == VERDICT_COMPLETED)
	{
		business->state = BUSINESS_DONE;
		business->events += FAULT == FAULT_resolve_silent ? 0 : 1;
	}
	else
		business->state = BUSINESS_VOID;
	clerk->pc = 2;
}

/* One step of an operator. */
void
operator_step(World *world, Random *random)
{
	Clerk	   *clerk = &world->operator;

	switch (clerk->pc)
	{
		case 0:
			operator_look(world, clerk, random);
			break;
		case 1:
			operator_write(world, clerk, random_chance(random, 500));
			break;
		default:
			TRACE(world, "the operator commits");
			clerk_commits(world, clerk);
	}
}

/* Somebody ends a prepared transaction, one way or the other. */
void
prepared_step(World *world, Random *random)
{
	int			i = (int) random_below(random, MAX_PREPARED);
	int			tx = world->prepared[i].tx;
	Worker	   *worker = &world->workers[world->prepared[i].worker];
	bool		commits = random_chance(random, 700);

	if (tx == NO_TX)
		return;
	TRACE(world, "worker %d's prepared transaction is %s", world->prepared[i].worker,
		  commits ? "committed" : "rolled back");
	if (commits)
	{
		SEEN(prepared_commit);
		commit_checked(world, tx);
	}
	else
	{
		SEEN(prepared_abort);
		store_abort(&world->store, tx);
	}
	world->prepared[i].tx = NO_TX;
	if (worker->job == world->prepared[i].job)
		worker->ended = commits ? ENDED_COMMITTED : ENDED_ABORTED;
}

/* The server crashes: what was not committed or prepared is gone. */
void
server_crash(World *world)
{
	Store	   *store = &world->store;

	SEEN(crash);
	TRACE(world, "the server crashes");
	for (int i = 0; i < MAX_WORKERS; i++)
	{
		Worker	   *worker = &world->workers[i];

		if (worker->tx == NO_TX || worker->pc == PC_PREPARED)
			continue;
		worker->tx = NO_TX;
		worker->pc = worker->function == FUNCTION_NONE || worker->same_transaction ? PC_IDLE : PC_WORK;
		worker->function = FUNCTION_NONE;
	}
	world->sweep.pc = world->operator.pc = 0;
	world->sweep.tx = world->operator.tx = NO_TX;
	for (int tx = 0; tx < MAX_TXS; tx++)
	{
		if (!store->txs[tx].open)
			continue;
		if (store->txs[tx].prepared)
			SEEN(prepared_crash);
		else
			store_abort(store, tx);
	}
	if (FAULT == FAULT_sequence_lost)
	{
		world->attempts = 0;
		for (int key = 0; key < MAX_KEYS; key++)
			if (store_committed(store, key)->facts.attempt > world->attempts)
				world->attempts = store_committed(store, key)->facts.attempt;
	}
	if (FAULT == FAULT_no_flush)
		for (int key = 0; key < MAX_KEYS; key++)
			if (store->keys[key].row_lock == NO_TX)
				store_forget(store, key);
}
