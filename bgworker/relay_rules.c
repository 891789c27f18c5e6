/*-------------------------------------------------------------------------
 *
 * relay_rules.c
 *		The relay's rules: where it begins, and what to do with a row.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

#include <stddef.h>
#include <string.h>

/* longer ago than any time that matters */
#define CENTURY				(INT64_C(100) * 365 * 86400 * USEC_PER_SEC)

/* rows without a key that follow each other into one partition */
#define SPREAD_ROWS			100

/* ---- beginning ---- */

/* Starts with nothing known: every leaf is to be looked at. */
void
relay_rules_init(RelayRules *rules)
{
	for (int t = 0; t < rules->ntopics; t++)
		memset(&rules->topic[t], 0, sizeof(rules->topic[t]));
	for (int k = 0; k < rules->used_keys; k++)
		rules->key[k].queued = false;
	memset((char *) rules + offsetof(RelayRules, window_rows), 0,
		   sizeof(*rules) - offsetof(RelayRules, window_rows));
	rules->window_rows = RELAY_WINDOW_ROWS;
	rules->window_bytes = RELAY_WINDOW_BYTES;
	rules->stuck_after = 60 * USEC_PER_SEC;
	rules->max_keys = RELAY_KEYS;
	rules->generation = 1;
	rules->batch_bytes = RELAY_BATCH_BYTES;
	rules->next_batch_bytes = RELAY_BATCH_BYTES;
	rules->stored_at = rules->released_at = -CENTURY;
	rules->usual_way = NEW_WAY;
	for (int i = 0; i < RELAY_BUCKETS; i++)
		rules->partition_bucket[i] = NONE;
	relay_rules_forget(rules);
}

static void
forget_topic(RelayTopic *topic)
{
	topic->state = RELAY_TOPIC_OPEN;
	topic->behind.any = false;
	topic->in_flight = 0;
	topic->bytes = 0;
	topic->probe_sent = false;
	topic->asked = false;
	topic->backoff = BACKOFF_MIN;
}

/*
 * Forgets the rows on their way and those that are held, and looks at every leaf
 * again: the tables are others than before.  Reports of forgotten rows are
 * ignored.
 */
void
relay_rules_forget(RelayRules *rules)
{
	for (int i = 0; i < RELAY_BUCKETS; i++)
		rules->bucket[i] = NONE;
	for (int i = 0; i < rules->used_entries; i++)
		rules->entry[i].state = RELAY_FREE;
	rules->free = NONE;
	rules->used_entries = 0;
	rules->in_flight = rules->waiting = rules->acknowledged = rules->refused = 0;
	rules->stream_in_flight = 0;
	rules->bytes = 0;
	relay_keys_init(rules);
	for (int t = 0; t < rules->ntopics; t++)
		forget_topic(&rules->topic[t]);
	rules->counts.stopped_topics = 0;
	for (int p = 0; p < rules->used_partitions; p++)
	{
		RelayPartition *partition = &rules->partition[p];

		partition->in_flight = 0;
		partition->bytes = 0;
		partition->listed = false;
		partition->behind.any = false;
		relay_list_init(&partition->flight);
	}
	rules->nslow = 0;
	rules->release_at = RELAY_NEVER;
	rules->stored_place = rules->stuck_place = rules->awaited_place = NONE;
	rules->stuck_wait = rules->stuck_after;
	rules->returned.any = false;
	relay_list_init(&rules->unnoted);
	rules->aside = 0;
	rules->mark_not_before = rules->note_not_before = rules->read_not_before = 0;
	rules->mark_failed = rules->read_failed = false;
	for (int i = 0; i < RELAY_LEAVES; i++)
	{
		relay_list_init(&rules->leaf[i].acknowledged);
		rules->leaf[i].nacknowledged = 0;
		rules->leaf[i].chunk = RELAY_ENTRIES;
		rules->leaf[i].lowered = false;
	}
	relay_rules_sweep(rules);
}

/* Looks at every leaf again, from its start, and at the parked rows. */
void
relay_rules_sweep(RelayRules *rules)
{
	for (int i = 0; i < RELAY_LEAVES; i++)
	{
		rules->leaf[i].state = RELAY_LEAF_UNREAD;
		rules->leaf[i].position = RELAY_SEQ_MIN;
		rules->leaf[i].late = RELAY_LEAF_CLEAN;
	}
	rules->holds_wanted = true;
}

/* There are no tables, so nothing to read before a commit tells of some. */
void
relay_rules_nothing(RelayRules *rules)
{
	for (int i = 0; i < RELAY_LEAVES; i++)
		rules->leaf[i].state = RELAY_LEAF_CLEAN;
	rules->holds_wanted = false;
}

/* A transaction committed unpublished rows of a leaf, seq the lowest of them. */
void
relay_rules_hint(RelayRules *rules, int leaf, int64_t seq)
{
	relay_lower(rules, leaf, seq);
}

/* ---- what to do with a row ---- */

/* The partition for a row without a key: each in its turn, if it moves. */
static int32_t
spread(RelayRules *rules, int topic, int64_t now)
{
	RelayTopic *t = &rules->topic[topic];

	if (t->partitions <= 0)
		return RELAY_ANY_PARTITION;
	for (int tries = 0; tries < 16; tries++)
	{
		int			place;

		if (t->spread_left <= 0 || t->spread >= t->partitions)
		{
			t->spread_left = SPREAD_ROWS;
			if (++t->spread >= t->partitions)
			{
				t->spread = 0;
				/* at times the library chooses, and so tells how many there are */
				if (t->in_flight == 0)
					return RELAY_ANY_PARTITION;
			}
		}
		place = relay_place(rules, topic, t->spread);
		if (!rules->partition[place].behind.any && relay_may_begin(rules, place, now) &&
			!relay_over_share(rules, place, now) && !relay_in_doubt(rules, place, now))
			break;
		t->spread_left = 0;
	}
	t->spread_left--;
	return t->spread;
}

/* A row whose topic is probed: it is the one, or it is left behind. */
static RelayVerdict
send_alone(RelayRules *rules, const RelayRow *row, int k, int64_t now, uint64_t *ticket)
{
	RelayTopic *topic = &rules->topic[row->topic];
	int			i = relay_entry_add(rules, row, now);

	relay_entry_send(rules, i, RELAY_PROBE, now);
	rules->sent = true;
	if (topic->state == RELAY_TOPIC_STOPPED)
		topic->state = RELAY_TOPIC_PROBING;
	topic->probe_sent = topic->state == RELAY_TOPIC_PROBING;
	if (k != NONE && relay_key_is_row(&rules->key[k], row))
		rules->key[k].try_at = RELAY_NEVER;
	*ticket = relay_ticket_of(rules, i);
	return RELAY_ALONE;
}

/*
 * Whether the row's key lets it go.  RELAY_PRODUCE: it does; RELAY_SKIP: it was
 * left behind, or is tried alone in its time.
 */
static RelayVerdict
ask_key(RelayRules *rules, const RelayRow *row, int k)
{
	RelayKey   *key = &rules->key[k];

	if (key->state == RELAY_KEY_TRYING && relay_key_is_row(key, row))
		return RELAY_SKIP;
	if ((key->state != RELAY_KEY_OPEN && row->seq > key->seq) ||
		(key->behind.any && row->seq >= key->behind.seq))
	{
		relay_leave(&key->behind, row);
		return RELAY_SKIP;
	}
	return RELAY_PRODUCE;
}

/* Whether the row must be tried alone, for what is known of it. */
static bool
is_suspect(const RelayRules *rules, const RelayRow *row)
{
	uint32_t	limit = rules->topic[row->topic].limit;

	return row->attempts > 0 || (limit > 0 && row->bytes - RELAY_ROW_OVERHEAD > limit);
}

/*
 * Whether a row that must be tried alone may be its topic's probe at once.  It is the
 * first of the topic, so it passes nobody; and if there is no room to remember its
 * key, it could not be tried later.
 */
static bool
may_be_probe(RelayRules *rules, const RelayRow *row)
{
	return rules->topic[row->topic].state == RELAY_TOPIC_PROBING && relay_key_add(rules, row) == NONE;
}

/* A row for which its key has no room now: it waits, or is left behind. */
static RelayVerdict
wait_or_leave(RelayRules *rules, const RelayRow *row, int k, int64_t now, uint64_t *ticket)
{
	RelayKey   *key = &rules->key[k];
	int			i;

	relay_linger_waits(rules);
	if (rules->waiting >= RELAY_WAITING_ROWS || key->nwaiting >= RELAY_WAITING_OF_KEY)
	{
		relay_leave(&key->behind, row);
		return RELAY_SKIP;
	}
	i = relay_entry_add(rules, row, now);
	*ticket = relay_ticket_of(rules, i);
	relay_key_wait(rules, k, i);
	return RELAY_WAIT;
}

/* A row that is read to be sent alone. */
static RelayVerdict
row_alone(RelayRules *rules, const RelayRead *read, const RelayRow *row, int64_t now, uint64_t *ticket)
{
	int			k = relay_key_find(rules, row);

	if (read->key != NONE)
	{
		if (k != read->key || !relay_key_is_row(&rules->key[k], row))
			return RELAY_SKIP;	/* another row took its place */
		rules->met = true;
		if (!relay_key_may_try(rules, &rules->key[k], now))
		{
			rules->key[k].try_at = now + BACKOFF_MIN;
			return RELAY_SKIP;
		}
		return send_alone(rules, row, k, now, ticket);
	}
	if (row->topic != read->topic || rules->topic[row->topic].state != RELAY_TOPIC_STOPPED)
		return RELAY_SKIP;
	if (k != NONE && (rules->key[k].state != RELAY_KEY_OPEN || rules->key[k].behind.any))
		return RELAY_SKIP;		/* it can't be the probe */
	if (is_suspect(rules, row))
		return RELAY_SKIP;
	return send_alone(rules, row, k, now, ticket);
}

/*
 * What comes before all else.  RELAY_PRODUCE: nothing of it stops the row.
 */
static RelayVerdict
look_at(RelayRules *rules, const RelayRead *read, const RelayRow *row)
{
	RelayTopic *topic = &rules->topic[row->topic];
	int			k;

	if (relay_entry_find(rules, row) != NONE)
	{
		rules->read_in_vain++;
		return RELAY_SKIP;
	}
	if (read->alone)
		return RELAY_PRODUCE;
	if (rules->stream != RELAY_STREAM_OPEN || rules->holds_wanted || relay_window_full(rules))
		return RELAY_FULL;
	if (rules->lowered && rules->lowered_to <= row->seq)
		return RELAY_FULL;		/* rows before it were let go meanwhile: they come first */
	k = relay_key_find(rules, row);
	if (k != NONE && rules->key[k].state == RELAY_KEY_HELD && relay_key_is_row(&rules->key[k], row))
	{
		/* it is not parked any more: who knows which other rows are */
		rules->holds_wanted = true;
		relay_leave(&rules->key[k].behind, row);
		return RELAY_FULL;
	}
	if (topic->state != RELAY_TOPIC_OPEN &&
		!(topic->state == RELAY_TOPIC_CROWDED && k != NONE) &&
		!(topic->state == RELAY_TOPIC_PROBING && !topic->probe_sent && topic->in_flight == 0 &&
		  !(topic->behind.any && topic->behind.seq < row->seq)))
	{
		relay_leave(&topic->behind, row);
		return RELAY_SKIP;
	}
	return RELAY_PRODUCE;
}

/*
 * What can be said of a row just read whose size is not known yet: RELAY_PRODUCE,
 * that it is worth the effort to make a record of it and to ask relay_rules_row, or
 * RELAY_SKIP or RELAY_FULL.  For a row without a key, the partition is chosen here.
 */
RelayVerdict
relay_rules_look(RelayRules *rules, const RelayRead *read, RelayRow *row, int64_t now)
{
	RelayVerdict verdict = look_at(rules, read, row);
	int			place;
	int			k;

	if (verdict != RELAY_PRODUCE || read->alone)
		return verdict;
	if (row->key == 0)
		row->partition = spread(rules, row->topic, now);
	place = relay_place(rules, row->topic, row->partition);
	if (rules->partition[place].behind.any)
	{
		rules->read_in_vain++;
		relay_leave_at(rules, place, row);
		return RELAY_SKIP;
	}
	k = relay_key_find(rules, row);
	return k == NONE ? RELAY_PRODUCE : ask_key(rules, row, k);
}

/*
 * What to do with a row that relay_rules_look has just let pass, and a ticket for it
 * unless it is skipped.
 */
RelayVerdict
relay_rules_row(RelayRules *rules, const RelayRead *read, const RelayRow *row, int64_t now, uint64_t *ticket)
{
	RelayTopic *topic = &rules->topic[row->topic];
	int			awaited = NONE;
	int			place;
	int			k;
	int			i;

	if (read->alone)
		return row_alone(rules, read, row, now, ticket);
	k = relay_key_find(rules, row);
	place = relay_place(rules, row->topic, row->partition);
	if (is_suspect(rules, row) && !may_be_probe(rules, row))
	{
		relay_key_try(rules, row, now);
		return RELAY_SKIP;		/* read again when it may go */
	}
	if (topic->state == RELAY_TOPIC_PROBING)
		return send_alone(rules, row, k, now, ticket);

	if (!relay_may_begin(rules, place, now))
		awaited = relay_first_on_its_way(rules, place, now);
	else if (relay_in_doubt(rules, place, now))
		awaited = place;
	if (awaited != NONE)
	{
		rules->awaited_place = awaited;
		return RELAY_FULL;
	}
	if (!relay_may_begin(rules, place, now) ||
		relay_over_share(rules, place, now))
	{
		relay_leave_at(rules, place, row);
		return RELAY_SKIP;
	}
	if (row->key != 0)
	{
		k = relay_key_add(rules, row);
		if (k == NONE)
		{
			relay_topic_crowd(rules, row);
			return RELAY_SKIP;
		}
		if (topic->max_in_flight_per_key > 0 &&
			(rules->key[k].nwaiting > 0 || rules->key[k].in_flight >= topic->max_in_flight_per_key))
			return wait_or_leave(rules, row, k, now, ticket);
	}
	relay_linger_sends(rules, place, now);
	i = relay_entry_add(rules, row, now);
	relay_entry_send(rules, i, RELAY_STREAM, now);
	*ticket = relay_ticket_of(rules, i);
	return RELAY_PRODUCE;
}

/*
 * A row that was read could not be made into a Kafka record: it is refused, alone,
 * if it may go now.  The rows before it in the read were dealt with.  Gives the
 * ticket of the refusal, 0 if there is none.
 */
uint64_t
relay_rules_broken(RelayRules *rules, const RelayRead *read, const RelayRow *row, int64_t now)
{
	RelayLeaf  *leaf = &rules->leaf[row->leaf];
	uint64_t	ticket = 0;
	RelayVerdict verdict = look_at(rules, read, row);
	int			k = relay_key_find(rules, row);

	if (verdict == RELAY_PRODUCE && read->alone)
		verdict = row_alone(rules, read, row, now, &ticket);
	else if (verdict == RELAY_PRODUCE && k != NONE)
		verdict = ask_key(rules, row, k);
	if (verdict == RELAY_PRODUCE && row->attempts > 0 && !may_be_probe(rules, row))
	{
		relay_key_try(rules, row, now);
		verdict = RELAY_SKIP;
	}
	if (verdict == RELAY_PRODUCE)
	{
		int			i = relay_entry_add(rules, row, now);

		relay_entry_send(rules, i, RELAY_PROBE, now);
		ticket = relay_ticket_of(rules, i);
	}
	if (ticket != 0)
		relay_rules_refused(rules, ticket, RELAY_ROW, now);

	if (read->alone)
		relay_rules_alone_done(rules, read);
	else if (leaf->state == RELAY_LEAF_DIRTY && leaf->position <= row->seq &&
			 !(leaf->lowered && leaf->lowered_to <= row->seq))
	{
		if (verdict == RELAY_FULL)
			leaf->position = row->seq;
		else if (row->seq < RELAY_SEQ_MAX)
			leaf->position = row->seq + 1;
		else
			leaf->state = RELAY_LEAF_CLEAN;
	}
	return ticket;
}
