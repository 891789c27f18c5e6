/*-------------------------------------------------------------------------
 *
 * relay_partitions.c
 *		The relay's rules: partitions, and what each may have of the window.
 *
 * A row of the stream goes alone to each partition until one is stored there:
 * Kafka takes a later batch of a producer that it does not know although it has
 * refused the first.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/*
 * A partition moves if its oldest row in flight is younger than so many times what
 * rows take on the average, within bounds.  Where many partitions share a broker each
 * has its turn, and rows take from nothing to twice the average.
 */
#define FRESH_WAYS			4
#define FRESH_MIN			(USEC_PER_SEC / 20)
#define FRESH_MAX			(5 * USEC_PER_SEC)

/* or than this at the most, if nothing was stored anywhere for so long */
#define QUIET_MAX			(USEC_PER_SEC / 2)

/* and surely so if a row was stored there as short ago as this */
#define PROVED_WAYS			3
#define PROVED_MIN			(USEC_PER_SEC / 50)

/*
 * After rows were let go that had been left behind, others are a while later, for each
 * row that was read in vain meanwhile: they are then read again with more at a time.
 */
#define REREAD_USEC			10
#define REREAD_MAX			(USEC_PER_SEC / 5)

/* reading stops for the first row of one new topic in so long */
#define TOPIC_BEGINS		(USEC_PER_SEC / 10)

/* how often all partitions are looked at */
#define COUNT_USEC			(USEC_PER_SEC / 100)

/* Kafka forgets a producer that has been idle for a day */
#define CONFIRMED_FOR		(23 * 3600 * USEC_PER_SEC)

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
bool
relay_confirmed(const RelayRules *rules, int place, int64_t now)
{
	const RelayPartition *partition = &rules->partition[place];

	return partition->number >= 0 && partition->confirmed == rules->generation &&
		now - partition->stored_at < CONFIRMED_FOR;
}

/*
 * Whether a row may be sent there: the stream is known there, or the row is the
 * only one.  Rows whose partition was not known when they were sent may be
 * anywhere.
 */
bool
relay_may_begin(RelayRules *rules, int place, int64_t now)
{
	int			topic = rules->partition[place].topic;

	return relay_confirmed(rules, place, now) ||
		(rules->partition[place].in_flight == 0 &&
		 rules->partition[relay_place(rules, topic, RELAY_ANY_PARTITION)].in_flight == 0);
}

/* When a partition with rows in flight will stand, if nothing is stored until then. */
static int64_t
stands_at(const RelayRules *rules, const RelayPartition *partition)
{
	int64_t		since = rules->entry[partition->flight.first].since;
	int64_t		fresh = FRESH_WAYS * rules->usual_way;
	int64_t		quiet_from = since > rules->stored_at ? since : rules->stored_at;

	if (fresh < FRESH_MIN)
		fresh = FRESH_MIN;
	else if (fresh > FRESH_MAX)
		fresh = FRESH_MAX;
	if (fresh > QUIET_MAX && quiet_from + QUIET_MAX < since + fresh)
		return quiet_from + QUIET_MAX;
	return since + fresh;
}

static bool
stands(const RelayRules *rules, const RelayPartition *partition, int64_t now)
{
	return partition->in_flight > 0 && now >= stands_at(rules, partition);
}

/* Whether a row was stored there a short while ago. */
static bool
is_proved(const RelayRules *rules, const RelayPartition *partition, int64_t now)
{
	int64_t		ways = PROVED_WAYS * rules->usual_way;

	return now - partition->stored_at < (ways > PROVED_MIN ? ways : PROVED_MIN);
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
 * given until that is known: a half of the window, and little of the last quarter,
 * which is for those that have little; and all that don't move for sure together a
 * half, and no more than a row each of the last quarter when they have a quarter.
 * Reading stops for so long, or until there is room again.
 */
bool
relay_in_doubt(const RelayRules *rules, int place, int64_t now)
{
	const RelayPartition *partition = &rules->partition[place];
	int			sharers;

	if (partition->in_flight == 0 || stands(rules, partition, now))
		return false;
	if ((int64_t) partition->in_flight * 2 >= rules->window_rows || partition->bytes * 2 >= rules->window_bytes)
		return true;
	if (reserve_is_left(rules) &&
		((int64_t) partition->in_flight * 16 >= rules->window_rows || partition->bytes * 16 >= rules->window_bytes))
		return true;
	if (is_proved(rules, partition, now))
		return false;
	sharers = reserve_is_left(rules) ? 4 : 2;
	return (int64_t) rules->unproved_rows * sharers >= rules->window_rows ||
		rules->unproved_bytes * sharers >= rules->window_bytes;
}

/*
 * A row can't begin at a place: the place whose first row it waits for, while that
 * one is not late.  It is stored in a moment, and reading stops for so long: rows
 * that are left behind with hundreds of partitions, each released for itself, would
 * be read again and again.  NONE: that one takes longer, or the last for which
 * reading stopped did, not long ago; others then don't wait.
 */
int
relay_first_on_its_way(RelayRules *rules, int place, int64_t now)
{
	int			topic = rules->partition[place].topic;

	/* many topics begin at a time: not each is waited for */
	if (rules->topic[topic].begun != rules->generation)
	{
		if (topic != rules->beginning && now - rules->beginning_at < TOPIC_BEGINS)
			return NONE;
		rules->beginning = topic;
		rules->beginning_at = now;
	}
	if (rules->partition[place].in_flight == 0)
		place = relay_place(rules, rules->partition[place].topic, RELAY_ANY_PARTITION);
	if (now < rules->no_waiting_until || stands(rules, &rules->partition[place], now))
		return NONE;
	return place;
}

/* Whether reading is still to stop for a partition. */
static bool
is_awaited(const RelayRules *rules, int place, int64_t now)
{
	const RelayPartition *partition = &rules->partition[place];

	return relay_in_doubt(rules, place, now) ||
		(partition->in_flight > 0 && !relay_confirmed(rules, place, now) && !stands(rules, partition, now));
}

/* When reading stopped for a partition: when it goes on, at the latest. */
int64_t
relay_reading_stops_until(const RelayRules *rules, int64_t now)
{
	int			place = rules->awaited_place;

	int64_t		at;

	if (place == NONE || !is_awaited(rules, place, now))
		return now;
	at = stands_at(rules, &rules->partition[place]);
	/* what all have together is as of the last look at them */
	return relay_in_doubt(rules, place, now) && rules->count_at < at ? rules->count_at : at;
}

/*
 * Whether a partition that stands has its share of the window: a quarter, and its
 * topic a half.  All that stand have a half together, and nothing of the last
 * quarter.  So a leader that is away never has all of it, and the others never
 * little: what it has it keeps for as long as it is away.
 */
static bool
has_share(const RelayRules *rules, int place, int64_t now, int parts)
{
	const RelayPartition *partition = &rules->partition[place];
	const RelayTopic *topic = &rules->topic[partition->topic];
	int			sharers = rules->standing > 2 ? rules->standing : 2;

	if (!stands(rules, partition, now))
		return false;
	if (reserve_is_left(rules))
		return true;
	if ((int64_t) partition->in_flight * 2 * sharers * parts >= rules->window_rows ||
		partition->bytes * 2 * sharers * parts >= rules->window_bytes)
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

/* How many partitions stand, and what those have that may, for all that is known. */
static void
count_partitions(RelayRules *rules, int64_t now)
{
	rules->standing = 0;
	rules->unproved_rows = 0;
	rules->unproved_bytes = 0;
	for (int p = 0; p < rules->used_partitions; p++)
	{
		const RelayPartition *partition = &rules->partition[p];

		if (partition->in_flight == 0)
			continue;
		if (stands(rules, partition, now))
			rules->standing++;
		else if (!is_proved(rules, partition, now))
		{
			rules->unproved_rows += partition->in_flight;
			rules->unproved_bytes += partition->bytes;
		}
	}
	rules->count_at = now + COUNT_USEC;
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
	int64_t		pause = rules->read_in_vain * REREAD_USEC;
	int64_t		not_before = rules->released_at + (pause < REREAD_MAX ? pause : REREAD_MAX);
	int			left = 0;

	rules->release_at = RELAY_NEVER;
	for (int n = 0; n < rules->nslow; n++)
	{
		int			place = rules->slow[n];
		RelayPartition *partition = &rules->partition[place];

		if (partition->behind.any && may_go(rules, place, now))
		{
			if (now < not_before)
				rules->release_at = not_before;
			else
			{
				relay_release(rules, &partition->behind);
				rules->released_at = now;
				rules->read_in_vain = 0;
			}
		}
		if (partition->behind.any)
			rules->slow[left++] = place;
		else
			partition->listed = false;
	}
	rules->nslow = left;
}

/* Counts those that stand, and has read again what was left behind and may go. */
void
relay_partitions_tick(RelayRules *rules, int64_t now)
{
	if (rules->awaited_place != NONE && stands(rules, &rules->partition[rules->awaited_place], now))
	{
		/* that was in vain: not again for as long */
		rules->no_waiting_until = now + (now - rules->entry[rules->partition[rules->awaited_place].flight.first].since);
		rules->awaited_place = NONE;
	}
	if (rules->count_at <= now)
		count_partitions(rules, now);
	release_partitions(rules, now);
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
