/*-------------------------------------------------------------------------
 *
 * relay_stream.c
 *		The relay's rules: topics and partitions, and the life of the producers.
 *
 * The stream ends with the first row that it is refused for good.  It then takes
 * no more; the library gives back what it has; what Kafka did store is marked;
 * and when the last report is in, a new stream begins with the lowest row that
 * is not stored.  A row of the new stream goes alone to each partition until one
 * is stored there: Kafka takes a later batch of a producer that it does not know
 * although it has refused the first.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* a partition moves if its oldest row in flight is younger than this */
#define FRESH				(USEC_PER_SEC / 20)

/* and surely so if a row was stored there as short ago as this */
#define PROVED				(USEC_PER_SEC / 100)

/* Kafka forgets a producer that has been idle for a day */
#define CONFIRMED_FOR		(23 * 3600 * USEC_PER_SEC)

/* the library may take so long to send what it has, and reports to come back */
#define PURGE_AGAIN			(USEC_PER_SEC / 4)
#define GIVE_UP				(2 * USEC_PER_SEC)
#define DRAIN				(5 * USEC_PER_SEC)

#define STUCK_MAX			(3600 * USEC_PER_SEC)
#define LOOK_EVERY			(USEC_PER_SEC / 4)

/* ---- partitions ---- */

static int *
place_bucket(RelayRules *rules, int topic, int32_t number)
{
	uint64_t	hash = ((uint64_t) topic * 1000003 + (uint32_t) number) * UINT64_C(0x9e3779b97f4a7c15);

	return &rules->partition_bucket[(hash >> 40) & (RELAY_BUCKETS - 1)];
}

/* Forgets a partition that nothing is known of but its name; gives its place. */
static int
recycle_place(RelayRules *rules)
{
	for (int place = 0; place < rules->used_partitions; place++)
	{
		RelayPartition *partition = &rules->partition[place];
		int		   *link;

		if (partition->in_flight > 0 || partition->listed)
			continue;
		link = place_bucket(rules, partition->topic, partition->number);
		while (*link != place)
			link = &rules->partition[*link].next_in_bucket;
		*link = partition->next_in_bucket;
		return place;
	}
	return NONE;
}

/* The place of a partition in the table. */
int
relay_place(RelayRules *rules, int topic, int32_t number)
{
	int		   *bucket = place_bucket(rules, topic, number);
	int			place = *bucket;
	RelayPartition *partition;

	while (place != NONE &&
		   (rules->partition[place].topic != topic || rules->partition[place].number != number))
		place = rules->partition[place].next_in_bucket;
	if (place != NONE)
		return place;

	if (rules->used_partitions < RELAY_PARTITIONS)
		place = rules->used_partitions++;
	else
		place = recycle_place(rules);
	if (place == NONE)
		return 0;				/* shares one: slower, and nothing else */
	partition = &rules->partition[place];
	*partition = (RelayPartition) {.topic = topic,.number = number,.next_in_bucket = *bucket};
	relay_list_init(&partition->flight);
	*bucket = place;
	return place;
}

/* Whether the stream has stored something there, and Kafka still knows of it. */
static bool
relay_confirmed(const RelayRules *rules, int place, int64_t now)
{
	const RelayPartition *partition = &rules->partition[place];

	return partition->number >= 0 && partition->confirmed == rules->generation &&
		now - partition->stored_at < CONFIRMED_FOR;
}

/*
 * Whether a row may be sent there: the stream is known there, or the row is the
 * only one.  Rows whose partition was not known when they were sent
 * may be anywhere.
 */
bool
relay_may_begin(RelayRules *rules, int place, int64_t now)
{
	int			topic = rules->partition[place].topic;

	return relay_confirmed(rules, place, now) ||
		(rules->partition[place].in_flight == 0 &&
		 rules->partition[relay_place(rules, topic, RELAY_ANY_PARTITION)].in_flight == 0);
}

/* Whether others are held up when this partition takes more of the window. */
static bool
others_move(const RelayRules *rules, int place, int64_t now)
{
	return rules->stream_in_flight > rules->partition[place].in_flight ||
		(rules->stored_place != place && now - rules->stored_at < USEC_PER_SEC);
}

static bool
stands(const RelayRules *rules, const RelayPartition *partition, int64_t now)
{
	return partition->in_flight > 0 && now - rules->entry[partition->flight.first].since >= FRESH;
}

/* Whether no more than the last quarter of the window is left. */
static bool
reserve_is_left(const RelayRules *rules)
{
	return (int64_t) (rules->in_flight + rules->acknowledged + rules->refused) * 4 >= (int64_t) rules->window_rows * 3 ||
		rules->bytes * 4 >= rules->window_bytes * 3;
}

/*
 * Whether a partition that can't be said to stand yet, but may, has what it can be
 * given until that is known: three quarters of the window, and of the last quarter
 * little, unless it moves for sure.  Reading stops for so long.
 */
bool
relay_in_doubt(const RelayRules *rules, int place, int64_t now)
{
	const RelayPartition *partition = &rules->partition[place];

	if (partition->in_flight == 0 || stands(rules, partition, now))
		return false;
	if ((int64_t) partition->in_flight * 4 >= (int64_t) rules->window_rows * 3 ||
		partition->bytes * 4 >= rules->window_bytes * 3)
		return true;
	return reserve_is_left(rules) && now - partition->stored_at >= PROVED &&
		((int64_t) partition->in_flight * 16 >= rules->window_rows || partition->bytes * 16 >= rules->window_bytes);
}

/* When reading stopped for a partition in doubt: when it is known to stand. */
int64_t
relay_doubt_ends(const RelayRules *rules, int64_t now)
{
	int			place = rules->doubtful_place;

	if (place == NONE || !relay_in_doubt(rules, place, now))
		return now;
	return rules->entry[rules->partition[place].flight.first].since + FRESH;
}

/*
 * Whether a partition that stands has its share of the window: a quarter, or three
 * quarters while no other moves; and its topic a half.  All that stand have a half
 * together, and nothing of the last quarter.  So a leader that is away never has
 * all of it.
 */
static bool
has_share(const RelayRules *rules, int place, int64_t now, int parts)
{
	const RelayPartition *partition = &rules->partition[place];
	const RelayTopic *topic = &rules->topic[partition->topic];
	int			quarters = others_move(rules, place, now) ? 1 : 3;
	int			sharers = 2;

	if (!stands(rules, partition, now))
		return false;
	if (reserve_is_left(rules))
		return true;
	if (quarters == 1 && rules->standing > 2)
		sharers = rules->standing;
	if ((int64_t) partition->in_flight * 2 * sharers * parts >= (int64_t) rules->window_rows * quarters ||
		partition->bytes * 2 * sharers * parts >= rules->window_bytes * quarters)
		return true;
	return rules->stream_in_flight > topic->in_flight &&
		((int64_t) topic->in_flight * 2 * parts >= rules->window_rows ||
		 topic->bytes * 2 * parts >= rules->window_bytes);
}

bool
relay_over_share(const RelayRules *rules, int place, int64_t now)
{
	return has_share(rules, place, now, 1);
}

/* Leaves a row behind with its partition. */
void
relay_leave_at(RelayRules *rules, int place, const RelayRow *row)
{
	RelayPartition *partition = &rules->partition[place];

	relay_leave(&partition->behind, row);
	if (!partition->listed)
		rules->slow[rules->nslow++] = place;
	partition->listed = true;
}

/* Whether rows of a topic below a seq are left behind with one of its partitions. */
bool
relay_left_before(const RelayRules *rules, int topic, int64_t seq)
{
	for (int n = 0; n < rules->nslow; n++)
	{
		const RelayPartition *partition = &rules->partition[rules->slow[n]];

		if (partition->topic == topic && partition->behind.any && partition->behind.seq < seq)
			return true;
	}
	return false;
}

/* Whether rows that were left behind with a partition may go. */
static bool
may_go(RelayRules *rules, int place, int64_t now)
{
	return relay_may_begin(rules, place, now) && !has_share(rules, place, now, 2);
}

static void
release_partitions(RelayRules *rules, int64_t now)
{
	int			left = 0;

	for (int n = 0; n < rules->nslow; n++)
	{
		int			place = rules->slow[n];
		RelayPartition *partition = &rules->partition[place];

		if (partition->behind.any && may_go(rules, place, now))
			relay_release(rules, &partition->behind);
		if (partition->behind.any)
			rules->slow[left++] = place;
		else
			partition->listed = false;
	}
	rules->nslow = left;
}

/* ---- topics ---- */

/* What the operator set for a topic. */
void
relay_rules_topic_set(RelayRules *rules, int topic, bool skip, int max_in_flight_per_key)
{
	RelayTopic *t = &rules->topic[topic];

	if (t->skip != skip)
		rules->holds_wanted = true;
	t->skip = skip;
	t->max_in_flight_per_key = max_in_flight_per_key;
	while (rules->ntopics <= topic)
		rules->topic[rules->ntopics++].backoff = BACKOFF_MIN;
}

/*
 * How many partitions a topic has.  When that changes, keys go elsewhere: what
 * was left behind with a partition must not be passed by way of another.
 */
void
relay_rules_partitions(RelayRules *rules, int topic, int32_t count)
{
	if (rules->topic[topic].partitions == count)
		return;
	rules->topic[topic].partitions = count;
	for (int n = 0; n < rules->nslow; n++)
		if (rules->partition[rules->slow[n]].topic == topic)
			relay_release(rules, &rules->partition[rules->slow[n]].behind);
}

/* Takes a topic's rows that wait for their keys back. */
static void
drop_waiting(RelayRules *rules, int topic, RelayBehind *behind)
{
	for (int i = 0; i < rules->used_entries && rules->waiting > 0; i++)
	{
		RelayEntry *entry = &rules->entry[i];
		int			k;

		if (entry->state != RELAY_WAITING || (topic != NONE && entry->row.topic != topic))
			continue;
		k = relay_key_find(rules, &entry->row);
		relay_key_drop_waiting(rules, k, behind);
		relay_key_rest(rules, k);
	}
}

/* What one stopped is stopped by another. */
static void
move_behind(RelayBehind *to, RelayBehind *from)
{
	if (!from->any)
		return;
	if (!to->any)
		*to = *from;
	else
	{
		if (from->seq < to->seq)
		{
			to->seq = from->seq;
			to->leaf = from->leaf;
		}
		to->leaves |= from->leaves;
	}
	from->any = false;
}

static void
close_topic(RelayRules *rules, int topic, RelayTopicState state, RelayClass reason)
{
	RelayTopic *t = &rules->topic[topic];

	if (t->state == RELAY_TOPIC_OPEN)
		rules->counts.stopped_topics++;
	t->state = state;
	t->reason = reason;
	t->probe_sent = false;
	if (state == RELAY_TOPIC_CROWDED)
		return;					/* keys that are known go on */
	drop_waiting(rules, topic, &t->behind);
	for (int n = 0; n < rules->nslow; n++)
	{
		RelayPartition *partition = &rules->partition[rules->slow[n]];

		if (partition->topic == topic)
			move_behind(&t->behind, &partition->behind);
	}
}

/* A topic takes nothing: it stops, and is probed after a pause that doubles. */
void
relay_topic_stop(RelayRules *rules, int topic, RelayClass reason, int64_t now)
{
	RelayTopic *t = &rules->topic[topic];

	if (t->state == RELAY_TOPIC_STOPPED || t->state == RELAY_TOPIC_ASKING)
		return;
	close_topic(rules, topic, RELAY_TOPIC_STOPPED, reason);
	t->probe_at = now + t->backoff;
	t->backoff = t->backoff * 2 < BACKOFF_MAX ? t->backoff * 2 : BACKOFF_MAX;
}

/* It takes rows again. */
void
relay_topic_open(RelayRules *rules, int topic)
{
	RelayTopic *t = &rules->topic[topic];

	if (t->state == RELAY_TOPIC_OPEN)
		return;
	rules->counts.stopped_topics--;
	t->state = RELAY_TOPIC_OPEN;
	t->probe_sent = false;
	t->backoff = BACKOFF_MIN;
	relay_release(rules, &t->behind);
}

/* A batch was too large for it: it stops until it is known what is not. */
void
relay_topic_ask(RelayRules *rules, int topic)
{
	RelayTopic *t = &rules->topic[topic];

	if (t->state == RELAY_TOPIC_ASKING)
		return;
	close_topic(rules, topic, RELAY_TOPIC_ASKING, RELAY_SIZE);
	t->asked = false;
}

/* There is no room to remember one more key. */
void
relay_topic_crowd(RelayRules *rules, const RelayRow *row)
{
	relay_leave(&rules->topic[row->topic].behind, row);
	if (rules->topic[row->topic].state == RELAY_TOPIC_OPEN)
		close_topic(rules, row->topic, RELAY_TOPIC_CROWDED, RELAY_TRANSIENT);
}

static void
release_crowded(RelayRules *rules)
{
	if (rules->counts.stopped_topics == 0 || rules->max_keys - rules->nkeys <= rules->max_keys / 16)
		return;
	for (int t = 0; t < rules->ntopics; t++)
		if (rules->topic[t].state == RELAY_TOPIC_CROWDED)
			relay_topic_open(rules, t);
}

/* A topic whose limit is to be asked for, or RELAY_NONE. */
int
relay_rules_ask_limit(RelayRules *rules)
{
	for (int t = 0; t < rules->ntopics && rules->counts.stopped_topics > 0; t++)
	{
		if (rules->topic[t].state != RELAY_TOPIC_ASKING || rules->topic[t].asked)
			continue;
		rules->topic[t].asked = true;
		return t;
	}
	return NONE;
}

/*
 * The largest batch that a topic takes (max.message.bytes); 0: could not be
 * learned, so it is tried with batches of half the size.
 */
void
relay_rules_limit(RelayRules *rules, int topic, uint32_t limit, int64_t now)
{
	uint32_t	batch = limit > 0 ? limit / 10 * 9 : rules->batch_bytes / 2;

	if (rules->topic[topic].state != RELAY_TOPIC_ASKING)
		return;
	rules->topic[topic].limit = limit;
	if (batch < RELAY_BATCH_MIN)
		batch = RELAY_BATCH_MIN;
	if (batch < rules->next_batch_bytes)
		rules->next_batch_bytes = batch;
	if (rules->next_batch_bytes < rules->batch_bytes && rules->stream == RELAY_STREAM_OPEN)
	{
		rules->stream = RELAY_STREAM_DRAINING;
		rules->give_up_at = now + DRAIN;
		drop_waiting(rules, NONE, &rules->returned);
	}
	relay_topic_open(rules, topic);
}

/* ---- the stream ---- */

/*
 * The stream has ended.  The next one is made at once if this one got anywhere:
 * stored a row, or found one or a topic that is not to be sent again.
 */
static void
close_stream(RelayRules *rules, int64_t now)
{
	rules->rebuild_backoff = rules->got_on ? 0 :
		rules->rebuild_backoff == 0 ? BACKOFF_MIN :
		rules->rebuild_backoff * 2 < BACKOFF_MAX ? rules->rebuild_backoff * 2 : BACKOFF_MAX;
	rules->stream = RELAY_STREAM_CLOSED;
	rules->rebuild_at = now + rules->rebuild_backoff;
}

/* The stream is of no more use, or could not be made. */
void
relay_rules_stream_failed(RelayRules *rules, int64_t now)
{
	if (rules->stream == RELAY_STREAM_PURGING)
		return;
	if (rules->stream == RELAY_STREAM_CLOSED)
	{
		rules->got_on = false;
		close_stream(rules, now);
		return;
	}
	rules->stream = RELAY_STREAM_PURGING;
	rules->purge = true;
	rules->purge_again = now + PURGE_AGAIN;
	rules->give_up_at = now + GIVE_UP;
	drop_waiting(rules, NONE, &rules->returned);
}

/* What is to be done with the stream now. */
RelayStreamAction
relay_rules_stream_action(RelayRules *rules, int64_t now)
{
	if (rules->stream == RELAY_STREAM_DRAINING)
	{
		rules->got_on = true;
		if (rules->stream_in_flight == 0)
			close_stream(rules, now);
		else if (now >= rules->give_up_at)
			relay_rules_stream_failed(rules, now);
	}
	if (rules->stream == RELAY_STREAM_PURGING)
	{
		if (rules->purge)
		{
			rules->purge = false;
			return RELAY_STREAM_PURGE_QUEUE;
		}
		if (rules->stream_in_flight == 0 || now >= rules->give_up_at)
			close_stream(rules, now);
		else if (now >= rules->purge_again)
		{
			rules->purge_again = RELAY_NEVER;
			return RELAY_STREAM_PURGE_ALL;
		}
	}
	if (rules->stream == RELAY_STREAM_CLOSED && now >= rules->rebuild_at)
		return RELAY_STREAM_REBUILD;
	return RELAY_STREAM_LEAVE;
}

/* A new stream is there; what the old one did not report on is sent again. */
void
relay_rules_stream_built(RelayRules *rules, int64_t now)
{
	rules->stream = RELAY_STREAM_PURGING;	/* what comes back now is returned */
	for (int i = 0; i < rules->used_entries && rules->stream_in_flight > 0; i++)
		if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_STREAM)
			relay_rules_failed(rules, relay_ticket_of(rules, i), RELAY_RETURNED, now);
	rules->stream = RELAY_STREAM_OPEN;
	rules->generation++;
	rules->batch_bytes = rules->next_batch_bytes;
	rules->got_on = false;
	rules->counts.rebuilds++;
	relay_release(rules, &rules->returned);
}

/* The probe is of no more use. */
void
relay_rules_probe_failed(RelayRules *rules, int64_t now)
{
	(void) now;
	rules->probe_broken = true;
}

/* A new probe is there. */
void
relay_rules_probe_built(RelayRules *rules, int64_t now)
{
	rules->probe_broken = false;
	for (int i = 0; i < rules->used_entries; i++)
		if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_PROBE)
			relay_rules_failed(rules, relay_ticket_of(rules, i), RELAY_RETURNED, now);
	for (int t = 0; t < rules->ntopics; t++)
		rules->topic[t].asked = false;
}

/* ---- time ---- */

/*
 * A partition that stands for long while others move: the library may have lost
 * it, and a new producer finds it again.  If it doesn't, the next one comes later.
 */
static void
look_for_stuck(RelayRules *rules, int64_t now)
{
	int64_t		oldest = now;
	int			place = NONE;

	for (int p = 0; p < rules->used_partitions; p++)
	{
		const RelayPartition *partition = &rules->partition[p];

		if (partition->in_flight > 0 && rules->entry[partition->flight.first].since < oldest)
		{
			oldest = rules->entry[partition->flight.first].since;
			place = p;
		}
	}
	if (place == NONE || rules->stored_place == place || now - rules->stored_at > 10 * USEC_PER_SEC)
		return;
	if (now - oldest < rules->stuck_wait)
		return;
	rules->stuck_wait = rules->stuck_wait * 2 < STUCK_MAX ? rules->stuck_wait * 2 : STUCK_MAX;
	rules->stuck_place = place;
	relay_rules_stream_failed(rules, now);
}

static void
look_at_probe(RelayRules *rules, int64_t now)
{
	if (rules->in_flight == rules->stream_in_flight)
		return;
	for (int i = 0; i < rules->used_entries; i++)
		if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_PROBE &&
			now - rules->entry[i].since >= rules->stuck_after && now - rules->stored_at < 10 * USEC_PER_SEC)
			rules->probe_broken = true;
}

/* How many partitions stand. */
static void
count_standing(RelayRules *rules, int64_t now)
{
	rules->standing = 0;
	for (int p = 0; p < rules->used_partitions; p++)
		rules->standing += stands(rules, &rules->partition[p], now);
	rules->count_at = now + FRESH / 2;
}

/* Looks at what changes with time; call it in each turn. */
void
relay_rules_tick(RelayRules *rules, int64_t now)
{
	if (rules->count_at <= now)
		count_standing(rules, now);
	if (rules->nslow > 0)
		release_partitions(rules, now);
	release_crowded(rules);
	if (rules->in_flight == 0 || rules->look_at > now)
		return;
	rules->look_at = now + LOOK_EVERY;
	if (rules->stream == RELAY_STREAM_OPEN)
		look_for_stuck(rules, now);
	look_at_probe(rules, now);
}
