/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The worker: its loop, as bgworker/relay.c and relay_cycle.c run it.
 *
 * Each of its phases is a step; whatever else happens, happens between two.
 *
 *-------------------------------------------------------------------------
 */
#include "world.h"

#include <string.h>

#define READ_ROWS		7		/* as RELAY_READ_ROWS, but small */
#define ALONE_ROWS		3

/* ---- start and end ---- */

static void
start(World *world)
{
	Worker	   *worker = &world->worker;
	RelayRules *rules = &world->rules;

	TRACE(world, "a worker starts");
	relay_rules_init(rules);
	rules->window_rows = FAULT == FAULT_big_window ? world->config.window * 2 : world->config.window;
	rules->max_keys = world->config.max_keys;
	for (int t = 0; t < world->config.topics; t++)
		relay_rules_topic_set(rules, t, world->config.skip[t],
							  FAULT == FAULT_two_of_key ? 0 : world->config.max_per_key[t]);
	if (FAULT == FAULT_wait_forever)
		rules->stuck_after = rules->stuck_wait = RELAY_NEVER;
	if (FAULT == FAULT_no_sweep)
		relay_rules_nothing(rules);
	if (FAULT == FAULT_no_holds)
		rules->holds_wanted = false;
	library_open(world, &world->stream, false, rules->batch_bytes);
	world->probe.open = false;
	worker->phase = HEAR_COMMITS;
	worker->busy = false;
}

/* The worker dies, and with it the library's memory. */
void
worker_kill(World *world)
{
	if (world->worker.phase == DEAD)
		return;
	TRACE(world, "the worker dies");
	world->ends++;
	library_close(world, &world->stream);
	library_close(world, &world->probe);
	world->stream.number = world->probe.number = -1;
	world->worker.phase = DEAD;
	world->worker.starts_at = world->now + SEC;
	for (int r = 0; r < world->nrows; r++)
		world->row[r].out = world->row[r].in_library = false;
}

/* ---- producing ---- */

static void
send(World *world, RelayHandle handle, int r, const RelayRow *row, uint64_t ticket, bool *stop, Random *random)
{
	RelayRules *rules = &world->rules;
	Producer   *producer = handle == RELAY_STREAM ? &world->stream : &world->probe;
	RelayClass	class = RELAY_TRANSIENT;
	Take		take;

	if (!producer->open)
		library_open(world, producer, handle == RELAY_PROBE, rules->next_batch_bytes);
	take = library_produce(world, producer, r, row->key == 0 ? row->partition : -1, ticket, &class, random);
	TRACE(world, "row %d goes to %s %d: %s", r, handle == RELAY_STREAM ? "stream" : "probe", producer->number,
		  take == TAKEN ? "taken" : take == QUEUE_FULL ? "queue full" : "not sent");
	switch (take)
	{
		case TAKEN:
			world->row[r].out = world->row[r].in_library = true;
			check_sent(world, r);
			break;
		case QUEUE_FULL:
			relay_rules_not_taken(rules, ticket, world->now);
			*stop = true;
			break;
		case NOT_SENT:
			if (class == RELAY_RETURNED)
			{
				if (handle == RELAY_STREAM)
					relay_rules_stream_failed(rules, world->now);
				else
					relay_rules_probe_failed(rules, world->now);
				*stop = true;
			}
			relay_rules_refused(rules, ticket, class, world->now);
			break;
	}
}

/* A row of the outbox as the rules know it. */
static RelayRow
rules_row(const World *world, int r)
{
	const Row  *row = &world->row[r];
	RelayRow	result = {.seq = row->seq,.leaf = row->leaf,.topic = row->topic,.attempts = row->attempts};

	result.bytes = row->bytes + RELAY_ROW_OVERHEAD;
	memcpy(result.event_id, &r, sizeof(r));
	memcpy(result.event_id + 8, &r, sizeof(r));
	if (row->key >= 0)
		result.key = ((uint64_t) row->topic * 1000 + (uint64_t) row->key + 1) * UINT64_C(0x9e3779b97f4a7c15);
	result.partition = RELAY_ANY_PARTITION;
	return result;
}

static int
row_of(const RelayRow *row)
{
	int			r;

	memcpy(&r, row->event_id, sizeof(r));
	return r;
}

/* A row that was read; false: stop reading. */
static bool
take_row(World *world, const RelayRead *read, int r, bool *stop, Random *random)
{
	RelayRules *rules = &world->rules;
	RelayRow	row = rules_row(world, r);
	int			count = world->stream.partitions[row.topic];
	uint64_t	ticket;
	RelayVerdict verdict;

	if (world->row[r].broken)
	{
		TRACE(world, "row %d can't be made into a record", r);
		relay_rules_broken(rules, read, &row, world->now);
		*stop = true;
		return false;
	}
	if (count > 0)
		relay_rules_partitions(rules, row.topic, count);
	else
		count = rules->topic[row.topic].partitions;
	if (count > 0 && row.key != 0)
		row.partition = partition_of(world->row[r].key, count);
	if (FAULT == FAULT_no_first_alone)
		for (int p = 0; p < rules->used_partitions; p++)
		{
			rules->partition[p].confirmed = rules->generation;
			rules->partition[p].stored_at = world->now;
		}
	verdict = relay_rules_look(rules, read, &row, world->now);
	if (verdict == RELAY_PRODUCE)
		verdict = relay_rules_row(rules, read, &row, world->now, &ticket);
	TRACE(world, "row %d is read: %s", r, verdict == RELAY_PRODUCE ? "produce" : verdict == RELAY_ALONE ? "alone" :
		  verdict == RELAY_WAIT ? "wait" : verdict == RELAY_SKIP ? "skip" : "full");
	if (verdict == RELAY_PRODUCE || verdict == RELAY_ALONE || verdict == RELAY_WAIT)
		world->row[r].read_at = world->worker.snapshot;
	if (FAULT == FAULT_forget_key)
		for (int k = 0; k < rules->used_keys; k++)
			rules->key[k].behind.any = false;
	if (FAULT == FAULT_forget_partition)
		for (int p = 0; p < rules->used_partitions; p++)
			rules->partition[p].behind.any = false;
	if (FAULT == FAULT_no_hold)
		for (int k = 0; k < rules->used_keys; k++)
		{
			if (rules->key[k].state == RELAY_KEY_TRYING)
				rules->key[k].seq = RELAY_SEQ_MAX;
			rules->key[k].behind.any = false;
		}
	switch (verdict)
	{
		case RELAY_PRODUCE:
		case RELAY_ALONE:
			send(world, verdict == RELAY_PRODUCE ? RELAY_STREAM : RELAY_PROBE, r, &row, ticket, stop, random);
			return !*stop;
		case RELAY_WAIT:
		case RELAY_SKIP:
			return true;
		case RELAY_FULL:
			*stop = true;
	}
	return false;
}

/* Reads rows; whether all below the bound were dealt with.  *broken: an error. */
static bool
read_rows(World *world, const RelayRead *read, int64_t *next, bool *broken, Random *random)
{
	int			limit = read->alone ? 1 : READ_ROWS;
	int64_t		from = read->from;
	bool		stop = false;
	int			n;

	*next = from;
	*broken = false;
	for (n = 0; n < limit; n++)
	{
		int			r = store_next(world, read->leaf, from, read->upto);

		if (r < 0)
			break;
		*next = world->row[r].seq;
		if (!take_row(world, read, r, &stop, random))
		{
			*broken = world->row[r].broken;
			break;
		}
		if (world->row[r].seq == RELAY_SEQ_MAX)
		{
			n++;
			break;
		}
		*next = world->row[r].seq + 1;
		from = *next;
	}
	return n < limit && !stop;
}

/* ---- phases ---- */

static void
hear_commits(World *world)
{
	for (int leaf = 0; leaf < RELAY_LEAVES; leaf++)
	{
		if (world->hinted[leaf])
			relay_rules_hint(&world->rules, leaf, world->hint[leaf]);
		world->hinted[leaf] = false;
	}
	if (world->sweep)
		relay_rules_sweep(&world->rules);
	world->sweep = false;
	if (world->holds)
		world->rules.holds_wanted = true;
	world->holds = false;
}

static void
hear_report(World *world, const Report *report)
{
	RelayRules *rules = &world->rules;
	uint32_t	i = (uint32_t) report->ticket;
	RelayClass	class = report->class;
	int64_t		offset = FAULT == FAULT_trust_later && report->offset < 0 ? 0 : report->offset;

	if (i < (uint32_t) rules->used_entries && rules->entry[i].number == (uint32_t) (report->ticket >> 32) &&
		rules->entry[i].state == RELAY_IN_FLIGHT)
	{
		Row		   *row = &world->row[row_of(&rules->entry[i].row)];

		row->in_library = false;
		if (!report->stored || offset < 0)
			row->out = false;
		TRACE(world, "report of row %d: %s %d", row_of(&rules->entry[i].row),
			  report->stored ? "stored" : "failed", report->stored ? (int) report->offset : (int) class);
	}
	if (report->stored || (FAULT == FAULT_mark_unstored && class == RELAY_RETURNED))
		relay_rules_persisted(rules, report->ticket, report->partition, offset, world->now);
	else
	{
		if (FAULT == FAULT_outage_counts && (class == RELAY_TRANSIENT || class == RELAY_TARGET))
			class = RELAY_ROW;
		if (FAULT == FAULT_batch_counts && class == RELAY_ROW)
			relay_rules_refused(rules, report->ticket, class, world->now);
		else
			relay_rules_failed(rules, report->ticket, class, world->now);
	}
}

static void
hear_producer(World *world, Producer *producer, RelayHandle handle)
{
	Report		report;

	while (library_next(producer, &report))
	{
		if (report.limit_of >= 0)
			relay_rules_limit(&world->rules, report.limit_of, report.limit, world->now);
		else if (report.fatal && handle == RELAY_STREAM)
			relay_rules_stream_failed(&world->rules, world->now);
		else if (report.fatal)
			relay_rules_probe_failed(&world->rules, world->now);
		else
			hear_report(world, &report);
	}
}

static void
mind(World *world, Random *random)
{
	RelayRules *rules = &world->rules;
	RelayStreamAction action;
	int			topic;

	relay_rules_tick(rules, world->now);
	while ((action = relay_rules_stream_action(rules, world->now)) != RELAY_STREAM_LEAVE)
	{
		if (action == RELAY_STREAM_REBUILD)
		{
			library_close(world, &world->stream);
			library_open(world, &world->stream, false, rules->next_batch_bytes);
			for (int i = 0; i < rules->used_entries; i++)
				if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_STREAM)
					world->row[row_of(&rules->entry[i].row)].out = world->row[row_of(&rules->entry[i].row)].in_library = false;
			if (FAULT == FAULT_forget_returned)
				rules->returned.any = false;
			relay_rules_stream_built(rules, world->now);
			break;
		}
		library_purge(world, &world->stream, action == RELAY_STREAM_PURGE_ALL);
	}
	if (rules->probe_broken)
	{
		library_close(world, &world->probe);
		world->probe.number = -1;
		for (int i = 0; i < rules->used_entries; i++)
			if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_PROBE)
				world->row[row_of(&rules->entry[i].row)].out = world->row[row_of(&rules->entry[i].row)].in_library = false;
		relay_rules_probe_built(rules, world->now);
	}
	while ((topic = relay_rules_ask_limit(rules)) != RELAY_NONE)
	{
		if (!world->probe.open)
			library_open(world, &world->probe, true, rules->next_batch_bytes);
		library_report(world, &world->probe, (Report) {.limit_of = topic,
					   .limit = random_chance(random, 700) ? world->topic[topic].max_bytes : 0});
	}
}

static void
send_waiting(World *world, Random *random)
{
	uint64_t	ticket;
	bool		stop = false;

	for (int n = 0; n < READ_ROWS && !stop && relay_rules_next_waiting(&world->rules, &ticket, world->now); n++)
	{
		RelayRow	row = world->rules.entry[ticket & UINT32_MAX].row;

		world->worker.busy = true;
		send(world, RELAY_STREAM, row_of(&row), &row, ticket, &stop, random);
	}
}

/* Where the snapshot may show rows below the positions. */
static void
hear_committing(World *world)
{
	if (FAULT == FAULT_no_late_read)
		return;
	for (int leaf = FIRST_LEAF - LEAVES + 1; leaf <= FIRST_LEAF; leaf++)
	{
		int64_t		lowest = store_pending(world, leaf);

		if (lowest != RELAY_SEQ_MAX)
			relay_rules_committing(&world->rules, leaf, lowest);
	}
	if (world->sweep)
		relay_rules_sweep(&world->rules);
}

static void
read_alone(World *world, Random *random)
{
	RelayRead	read;
	int64_t		next;
	bool		broken;

	hear_committing(world);
	for (int n = 0; n < ALONE_ROWS && relay_rules_next_alone(&world->rules, &read, world->now); n++)
	{
		world->worker.busy = true;
		read_rows(world, &read, &next, &broken, random);
		if (broken)
			return;
		relay_rules_alone_done(&world->rules, &read);
	}
}

static void
read_holds(World *world)
{
	relay_rules_holds_begin(&world->rules);
	for (int r = 0; r < world->nrows; r++)
	{
		const Row  *row = &world->row[r];

		if (row->parked && !row->deleted && row->visible_at <= world->worker.snapshot)
		{
			RelayRow	parked = rules_row(world, r);

			relay_rules_hold(&world->rules, &parked);
		}
	}
	relay_rules_holds_end(&world->rules);
}

static void
read_next(World *world, Random *random)
{
	RelayRules *rules = &world->rules;
	RelayRead	read;
	int64_t		next;
	bool		broken = false;

	if (FAULT == FAULT_hints_late)
		for (int leaf = 0; leaf < RELAY_LEAVES; leaf++)
			world->hinted[leaf] = false;
	if (!world->calm && random_chance(random, (uint32_t) world->config.database))
	{
		relay_rules_read_failed(rules, world->now);
		return;
	}
	if (rules->holds_wanted)
	{
		read_holds(world);
		return;
	}
	hear_committing(world);
	while (relay_rules_next_read(rules, &read))
	{
		bool		complete;

		if (read.peek)
		{
			int			r = store_next(world, read.leaf, read.from, RELAY_SEQ_MAX);

			relay_rules_peeked(rules, &read, r >= 0, r >= 0 ? world->row[r].seq : 0);
			continue;
		}
		complete = read_rows(world, &read, &next, &broken, random);
		if (broken)
			return;
		relay_rules_read_done(rules, &read, complete, next);
		if (!read.late || !complete)
			return;
	}
}

/* Takes the next leaf whose rows are to be marked. */
static Phase
begin_mark(World *world, Random *random)
{
	Worker	   *worker = &world->worker;

	if (worker->leaf == 0 && !relay_rules_mark_due(&world->rules, world->now))
		return NOTE;
	for (; worker->leaf < RELAY_LEAVES; worker->leaf++)
	{
		worker->nentries = relay_rules_to_mark(&world->rules, worker->leaf, worker->entries, world->now);
		if (worker->nentries == 0)
			continue;
		worker->mark_fails = !world->calm && random_chance(random, (uint32_t) world->config.database);
		return MARKED;
	}
	return NOTE;
}

/* The marks are committed, or failed. */
static void
end_mark(World *world, Random *random)
{
	Worker	   *worker = &world->worker;
	RelayRules *rules = &world->rules;

	if (worker->mark_fails)
	{
		relay_rules_mark_failed(rules, worker->leaf, worker->entries, worker->nentries,
								random_chance(random, 500), world->now);
		return;
	}
	for (int n = 0; n < worker->nentries; n++)
	{
		int			r = row_of(&worker->entries[n]->row);
		Row		   *row = &world->row[r];

		row->out = false;
		if (row->parked || row->deleted || FAULT == FAULT_no_marks)
			continue;
		TRACE(world, "row %d is marked", r);
		row->published = true;
		check_marked(world, r);
	}
	if (FAULT == FAULT_no_marks)
		for (int n = 0; n < worker->nentries; n++)
			relay_rules_hint(rules, worker->leaf, worker->entries[n]->row.seq);
	relay_rules_marked(rules, worker->leaf, worker->entries, worker->nentries);
}

static void
note(World *world, Random *random)
{
	RelayRules *rules = &world->rules;
	RelayRefusal refusal;

	if (!relay_rules_nth_refusal(rules, 0, &refusal, world->now))
		return;
	if (!world->calm && random_chance(random, (uint32_t) world->config.database))
		relay_rules_note_failed(rules, world->now);
	else
	{
		int			r = row_of(&refusal.row);
		Row		   *row = &world->row[r];
		bool		found = !row->published && !row->parked && !row->deleted;

		row->out = false;
		if (found)
		{
			TRACE(world, "row %d was refused %d times%s", r, refusal.attempts, refusal.park ? ", and is parked" : "");
			check_refused(world, r);
			row->attempts = FAULT == FAULT_retry_never ? 1 : refusal.attempts;
			row->parked = refusal.park;
			if (row->parked_from == 0)
				row->parked_from = ++world->stamp;
		}
		if (FAULT == FAULT_retry_never)
			refusal.park = row->parked = false;
		relay_rules_noted(rules, &refusal, found, world->now);
	}
}

/* The worker takes its next step. */
void
worker_step(World *world, Random *random)
{
	Worker	   *worker = &world->worker;
	RelayRules *rules = &world->rules;

	switch (worker->phase)
	{
		case DEAD:
			if (world->now >= worker->starts_at)
				start(world);
			return;
		case HEAR_COMMITS:
			worker->busy = false;
			hear_commits(world);
			worker->phase = HEAR_KAFKA;
			return;
		case HEAR_KAFKA:
			world->pipe = false;
			hear_producer(world, &world->stream, RELAY_STREAM);
			hear_producer(world, &world->probe, RELAY_PROBE);
			worker->phase = MIND;
			return;
		case MIND:
			mind(world, random);
			worker->phase = SEND_WAITING;
			return;
		case SEND_WAITING:
			send_waiting(world, random);
			worker->phase = rules->counts.trying_keys > 0 || rules->counts.stopped_topics > 0 ? LOOK_ALONE :
				relay_rules_wants_read(rules, world->now) ? TAKE_SNAPSHOT : MARK;
			worker->leaf = 0;
			return;
		case LOOK_ALONE:
			relay_rules_begin(rules);
			worker->snapshot = ++world->stamp;
			worker->phase = READ_ALONE;
			return;
		case READ_ALONE:
			read_alone(world, random);
			relay_rules_end(rules);
			worker->phase = relay_rules_wants_read(rules, world->now) ? TAKE_SNAPSHOT : MARK;
			return;
		case TAKE_SNAPSHOT:
			relay_rules_begin(rules);
			worker->snapshot = ++world->stamp;
			worker->busy = true;
			worker->phase = READ;
			return;
		case READ:
			read_next(world, random);
			relay_rules_end(rules);
			worker->phase = MARK;
			return;
		case MARK:
			worker->phase = begin_mark(world, random);
			return;
		case MARKED:
			end_mark(world, random);
			worker->leaf++;
			worker->phase = MARK;
			return;
		case NOTE:
			note(world, random);
			worker->phase = SLEEP;
			return;
		case SLEEP:
			if (!worker->busy && !world->latch && !world->pipe && relay_rules_wake_at(rules, world->now) > world->now)
				return;
			world->latch = false;
			worker->phase = HEAR_COMMITS;
			return;
	}
}
