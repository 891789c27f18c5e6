/*-------------------------------------------------------------------------
 *
 * worker.c
 *		A process of the application: a request comes, a key is claimed, an
 *		acquirer is called, the answer is stored.
 *
 * It keeps to the rules: it calls only what a committed claim allows, before
 * the deadline by its own clock, and an unrepeatable call once.  It may stop at
 * any step, for a while or for good.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

static int
number(const World *world, const Worker *worker)
{
	return (int) (worker - world->workers);
}

/* A request comes in, or the sweeper of unfinished work looks around. */
static void
begin_request(World *world, Worker *worker, Random *random)
{
	const Config *config = &world->config;
	bool		calm = world->calm;
	int			key = (int) random_below(random, (uint32_t) config->keys);
	const Row  *row = store_committed(&world->store, key);
	int			tx;

	if (world->closed && (!row->present || row->facts.state == RECORD_COMPLETED))
		return;					/* only what is not answered yet is asked for again */
	tx = store_begin(&world->store, !calm && random_chance(random, (uint32_t) config->repeatable_read));
	if (tx == NO_TX)
		return;
	*worker = (Worker) {
		.pc = PC_CLAIM,
		.job = worker->job + 1,
		.tx = tx,
		.key = key,
		.hash = calm && row->present ? row->hash
			: random_chance(random, (uint32_t) config->other_hash) ? OTHER_HASH : USUAL_HASH,
		.repeatable_read = world->store.txs[tx].repeatable_read,
		.stale = random_chance(random, calm && !config->clients_return ? 1000 : 200),
		.window = random_chance(random, 100) ? 0 : config->window[key],
		.timeout = random_chance(random, 700) ? config->timeout : random_between(random, 1, 12) * TICK,
		.lease = random_chance(random, 700) ? config->lease : random_between(random, 1, 30) * TICK,
		.one_transaction = random_chance(random, config->style[key] == STYLE_LOCAL ? 500 : 10),
		.claim_real = world->real,
	};
	TRACE(world, "worker %d %s key %d with hash %d, %s", number(world, worker),
		  worker->stale ? "looks for stale work of" : "claims", key, worker->hash,
		  worker->repeatable_read ? "REPEATABLE READ" : "READ COMMITTED");
	if (!calm && random_chance(random, (uint32_t) config->savepoint))
		store_savepoint(&world->store, tx);
}

/* The request is over, whatever came of it. */
static void
end_request(World *world, Worker *worker)
{
	if (worker->tx != NO_TX)
		store_abort(&world->store, worker->tx);
	worker->tx = NO_TX;
	worker->pc = PC_IDLE;
}

/* Stops for good, as a process does that is killed. */
void
worker_lost(World *world, int worker)
{
	Worker	   *this = &world->workers[worker];

	SEEN(died);
	TRACE(world, "worker %d dies", worker);
	if (this->pc == PC_PREPARED)
		this->tx = NO_TX;		/* the transaction outlives it */
	end_request(world, this);
	this->job++;
}

static void
complete_here(World *world, Worker *worker)
{
	worker->same_transaction = true;
	worker->answer = ANSWER_APPROVED;
	worker->response = ++world->responses;
	owner_call(world, worker, FUNCTION_COMPLETE);
}

/* The claim was undone by a savepoint, and the transaction goes on. */
static void
undo_claim(World *world, Worker *worker, Random *random)
{
	SEEN(savepoint);
	TRACE(world, "worker %d rolls back to its savepoint", number(world, worker));
	store_rollback_to(&world->store, worker->tx);
	switch (random_below(random, 3))
	{
		case 0:
			end_request(world, worker);
			break;
		case 1:
			worker->attempt = 0;
			worker->pc = PC_CLAIM;
			break;
		default:
			/* it believes to own the record: that has to end in an error */
			complete_here(world, worker);
	}
}

/* Takes note of a claim that was won, in a transaction still open. */
static void
won(World *world, Worker *worker)
{
	worker->attempt = worker->row.facts.attempt;
	worker->claimed_at = worker->claim.now;
	worker->lease_expires_at = worker->decision.lease_expires_at;
	worker->record = worker->row.record;
	worker->marked = worker->decision.marks_call;
	worker->leave_by = worker->claim_real + worker->timeout;
	if (worker->decision.outcome == RECORD_OUTCOME_STARTED)
	{
		world->store.txs[worker->tx].business.record = worker->record;
		world->store.txs[worker->tx].business.state = BUSINESS_PENDING;
	}
}

/* The claim has its outcome. */
static void
after_claim(World *world, Worker *worker, Random *random)
{
	bool		run = record_rules_runs(worker->decision.outcome);

	TRACE(world, "worker %d hears %s, attempt %lld", number(world, worker),
		  outcome_name(worker->decision.outcome), run ? (long long) worker->row.facts.attempt : 0);
	if (run)
		won(world, worker);
	else if (worker->decision.action == RECORD_SET_UNKNOWN)
	{
		world->store.txs[worker->tx].business.record = worker->row.record;
		world->store.txs[worker->tx].business.state = BUSINESS_UNCERTAIN;
		worker->pc = PC_COMMIT_CLAIM;
		return;
	}
	else if (worker->attempt == 0)
	{
		end_request(world, worker);
		return;
	}

	if (world->store.txs[worker->tx].savepoint && random_chance(random, 500))
		undo_claim(world, worker, random);
	else if (!worker->again && !worker->stale && random_chance(random, 50))
	{
		worker->again = true;
		worker->hash = random_chance(random, 200) ? OTHER_HASH : worker->hash;
		worker->pc = PC_CLAIM;
	}
	else if (worker->one_transaction)
		complete_here(world, worker);
	else if (random_chance(random, 20))
	{
		worker->same_transaction = true;
		owner_call(world, worker, FUNCTION_YIELD);
	}
	else
		worker->pc = PC_COMMIT_CLAIM;
}

/* A claim given up by the transaction that made it: the transaction claims again. */
static void
claim_after_yield(Worker *worker)
{
	worker->again = true;
	worker->same_transaction = false;
	worker->function = FUNCTION_NONE;
	worker->attempt = 0;
	worker->pc = PC_CLAIM;
}

/* The claim is committed, and the worker hears of it. */
static void
claim_committed(World *world, Worker *worker)
{
	worker->tx = NO_TX;
	worker->pc = PC_IDLE;
	if (worker->attempt == 0)
		return;
	worker->told = true;
	check_told(world, worker);
	worker->pc = PC_WORK;
}

/* A function of the owner is committed, and the worker hears of it. */
static void
function_committed(Worker *worker)
{
	worker->tx = NO_TX;
	worker->pc = PC_WORK;
	switch (worker->function)
	{
		case FUNCTION_BEFORE_CALL:
			worker->marked = true;
			worker->gave_up = false;
			worker->left = false;
			worker->answer = ANSWER_NONE;
			worker->leave_by = worker->function_real + worker->timeout;
			break;
		case FUNCTION_COMPLETE:
			worker->completed = true;
			break;
		default:
			worker->gave_up = true;
	}
	if (worker->same_transaction)
		worker->pc = PC_IDLE;
	worker->function = FUNCTION_NONE;
}

static void
committed(World *world, Worker *worker)
{
	if (worker->function == FUNCTION_NONE)
		claim_committed(world, worker);
	else
		function_committed(worker);
}

/* Commits, or prepares and leaves the rest to somebody else. */
static void
commit(World *world, Worker *worker, Random *random)
{
	if (!world->calm && random_chance(random, (uint32_t) world->config.prepare))
	{
		for (int i = 0; i < MAX_PREPARED; i++)
		{
			if (world->prepared[i].tx != NO_TX)
				continue;
			TRACE(world, "worker %d prepares its transaction", number(world, worker));
			store_prepare(&world->store, worker->tx);
			world->prepared[i].tx = worker->tx;
			world->prepared[i].worker = number(world, worker);
			world->prepared[i].job = worker->job;
			worker->ended = ENDED_NOT;
			worker->pc = PC_PREPARED;
			return;
		}
	}
	TRACE(world, "worker %d commits", number(world, worker));
	commit_checked(world, worker->tx);
	committed(world, worker);
}

/* Hears how a prepared transaction ended. */
static void
after_prepared(World *world, Worker *worker)
{
	if (worker->ended == ENDED_COMMITTED)
		committed(world, worker);
	else if (worker->ended == ENDED_ABORTED)
	{
		worker->tx = NO_TX;
		worker->pc = worker->function == FUNCTION_NONE || worker->same_transaction ? PC_IDLE : PC_WORK;
		worker->function = FUNCTION_NONE;
	}
}

/* A completed request: the reply may be lost, and the completion repeated. */
static void
after_completion(World *world, Worker *worker, Random *random)
{
	uint32_t	luck = world->calm ? 0 : random_below(random, 100);

	if (luck < 80 || worker->gave_up)
		end_request(world, worker);
	else
	{
		if (luck < 85)
			worker->response = ++world->responses;	/* must be refused */
		owner_call(world, worker, FUNCTION_COMPLETE);
		worker->gave_up = true;
	}
}

/* The owner of a record chooses what to do. */
static void
work(World *world, Worker *worker, Random *random)
{
	Style		style = world->config.style[worker->key];

	if (worker->completed)
		after_completion(world, worker, random);
	else if (style == STYLE_LOCAL || worker->answer != ANSWER_NONE)
	{
		if (worker->gave_up && world->calm)
		{
			end_request(world, worker);
			return;
		}
		if (worker->response == 0)
			worker->response = ++world->responses;
		owner_call(world, worker, FUNCTION_COMPLETE);
	}
	else if (worker->gave_up && !worker->left && random_chance(random, 200))
		owner_call(world, worker, FUNCTION_BEFORE_CALL);	/* it thinks again */
	else if (worker->gave_up || worker->left)
		worker->pc = PC_WAIT;
	else if (random_chance(random, 30))
		owner_call(world, worker, FUNCTION_YIELD);
	else if (!worker->marked)
		owner_call(world, worker, FUNCTION_BEFORE_CALL);
	else
		worker->pc = PC_LEAVE;
}

/* The call leaves, unless its time is over by the worker's own clock. */
static void
leave(World *world, Worker *worker, Random *random)
{
	if (world->real > worker->leave_by && FAULT != FAULT_call_late)
	{
		SEEN(too_late);
		TRACE(world, "worker %d is too late for its call", number(world, worker));
		owner_call(world, worker, random_chance(random, 500) ? FUNCTION_BEFORE_CALL : FUNCTION_YIELD);
		return;
	}
	if (!acquirer_send(world, worker, random))
		return;					/* the network is full: again later */
	TRACE(world, "worker %d's call leaves (attempt %lld)", number(world, worker),
		  (long long) worker->attempt);
	worker->left = true;
	worker->pc = PC_WAIT;
}

/* Waits for the acquirer's answer, for as long as its patience lasts. */
static void
wait_for_answer(World *world, Worker *worker, Random *random)
{
	bool		deduplicated = worker->window > 0;
	uint32_t	luck = random_below(random, 100);

	if (worker->answer != ANSWER_NONE)
		worker->pc = PC_WORK;
	else if (worker->gave_up)
	{
		/* a late answer may still come */
		if (world->calm || luck < 5)
			end_request(world, worker);
	}
	else if (world->real <= worker->leave_by && (world->calm || luck >= 5))
		return;
	else if (luck < 30 || world->calm)
		owner_call(world, worker, deduplicated ? FUNCTION_YIELD : FUNCTION_MARK_UNKNOWN);
	else if (luck < 35)
		owner_call(world, worker, FUNCTION_MARK_UNKNOWN);
	else if (luck < 40 && deduplicated)
		owner_call(world, worker, FUNCTION_BEFORE_CALL);	/* once more */
	else if (luck < 45)
		end_request(world, worker);
}

/* One step of a worker. */
void
worker_step(World *world, int number, Random *random)
{
	Worker	   *worker = &world->workers[number];

	if (!world->calm && worker->pc != PC_IDLE && random_chance(random, (uint32_t) world->config.die))
	{
		worker_lost(world, number);
		return;
	}
	switch (worker->pc)
	{
		case PC_IDLE:
			begin_request(world, worker, random);
			break;
		case PC_CLAIMED:
			after_claim(world, worker, random);
			break;
		case PC_COMMIT:
			if (worker->function == FUNCTION_YIELD && worker->same_transaction &&
				!worker->again && random_chance(random, 500))
			{
				claim_after_yield(worker);
				break;
			}
			/* FALLTHROUGH */
		case PC_COMMIT_CLAIM:
			commit(world, worker, random);
			break;
		case PC_PREPARED:
			after_prepared(world, worker);
			break;
		case PC_WORK:
			work(world, worker, random);
			break;
		case PC_LEAVE:
			leave(world, worker, random);
			break;
		case PC_WAIT:
			wait_for_answer(world, worker, random);
			break;
		case PC_CALL_ROW:
			owner_row(world, worker, random);
			break;
		case PC_BUSINESS:
			owner_business(world, worker);
			break;
		default:
			claim_step(world, worker);
	}
}
