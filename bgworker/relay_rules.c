/*-------------------------------------------------------------------------
 *
 * relay_rules.c
 *		The relay's rules: what to read, and what of it may go.
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
	rules->stored_at = -CENTURY;
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
	rules->stored_place = rules->stuck_place = NONE;
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

/* ---- what to read ---- */

static bool
window_full(const RelayRules *rules)
{
	return rules->in_flight + rules->acknowledged + rules->refused >= rules->window_rows ||
		rules->bytes >= rules->window_bytes;
}

/* A unit of work begins that reads rows; call it before its snapshot is taken. */
void
relay_rules_begin(RelayRules *rules)
{
	rules->lowered = false;
	relay_rules_end(rules);
}

/* It has ended, one way or the other. */
void
relay_rules_end(RelayRules *rules)
{
	for (int i = 0; i < RELAY_LEAVES && rules->any_late; i++)
		rules->leaf[i].late = RELAY_LEAF_CLEAN;
	rules->any_late = false;
}

/*
 * A transaction that is committing, or has told of its commit meanwhile, may have
 * put rows into a leaf from a seq on, and the snapshot may show them.  They are
 * read in this unit of work, in their order with the others.  The position stays,
 * for the transaction may take long to become visible.
 */
void
relay_rules_committing(RelayRules *rules, int leaf, int64_t seq)
{
	RelayLeaf  *l = &rules->leaf[leaf];

	if (l->state != RELAY_LEAF_CLEAN && l->position <= seq)
		return;					/* they are read anyway */
	l->late = RELAY_LEAF_DIRTY;
	l->late_from = seq;
	rules->any_late = true;
}

/* Whether there is something to read now. */
bool
relay_rules_wants_read(const RelayRules *rules, int64_t now)
{
	if (rules->read_not_before > now)
		return false;
	if (rules->holds_wanted)
		return true;
	if (rules->stream != RELAY_STREAM_OPEN || window_full(rules))
		return false;
	for (int i = 0; i < RELAY_LEAVES; i++)
		if (rules->leaf[i].state != RELAY_LEAF_CLEAN)
			return true;
	return false;
}

/* The lowest seq at which a leaf may have rows to be read. */
static bool
lowest_of(const RelayLeaf *leaf, int64_t *seq)
{
	if (leaf->late != RELAY_LEAF_CLEAN)
		*seq = leaf->late_from;
	else if (leaf->state != RELAY_LEAF_CLEAN)
		*seq = leaf->position;
	else
		return false;
	return true;
}

/*
 * The next read of a unit of work; false when there is none.  After a look, and
 * after late rows, the same snapshot serves for the next one.
 *
 * Leaves that are not known come first, by a look at their first unpublished
 * row, so that all positions are those of rows.  Then the leaf with the lowest
 * position is read as far as the next leaf's position: rows of several leaves
 * go out in the order of their seq.
 */
bool
relay_rules_next_read(RelayRules *rules, RelayRead *read)
{
	int			lowest = NONE;
	int64_t		from = 0;
	RelayLeaf  *leaf;

	*read = (RelayRead) {.upto = RELAY_SEQ_MAX,.limit = RELAY_READ_ROWS,.topic = NONE,.key = NONE};
	for (int i = 0; i < RELAY_LEAVES; i++)
	{
		int64_t		seq;

		leaf = &rules->leaf[i];
		read->peek = leaf->late == RELAY_LEAF_UNREAD ||
			(leaf->late == RELAY_LEAF_CLEAN && leaf->state == RELAY_LEAF_UNREAD);
		if (read->peek)
		{
			lowest = i;
			break;
		}
		if (lowest_of(leaf, &seq) && (lowest == NONE || seq < from))
		{
			lowest = i;
			from = seq;
		}
	}
	if (lowest == NONE)
		return false;

	leaf = &rules->leaf[lowest];
	read->leaf = lowest;
	read->late = leaf->late != RELAY_LEAF_CLEAN;
	lowest_of(leaf, &read->from);
	if (read->late && leaf->state != RELAY_LEAF_CLEAN)
		read->upto = leaf->position - 1;
	if (read->peek)
		read->limit = 1;
	for (int i = 0; i < RELAY_LEAVES && !read->peek; i++)
	{
		int64_t		seq;

		if (i != lowest && lowest_of(&rules->leaf[i], &seq) && seq <= read->upto)
			read->upto = seq > read->from ? seq - 1 : read->from;
	}
	leaf->lowered = false;
	return true;
}

/* A look at a leaf is done: whether it has an unpublished row, and the first. */
void
relay_rules_peeked(RelayRules *rules, const RelayRead *read, bool found, int64_t seq)
{
	RelayLeaf  *leaf = &rules->leaf[read->leaf];

	rules->read_failed = false;
	if (read->late)
	{
		leaf->late = found && seq <= read->upto ? RELAY_LEAF_DIRTY : RELAY_LEAF_CLEAN;
		leaf->late_from = seq;
		return;
	}
	leaf->state = found ? RELAY_LEAF_DIRTY : RELAY_LEAF_CLEAN;
	leaf->position = seq;
	if (leaf->lowered)
		relay_lower(rules, read->leaf, leaf->lowered_to);
}

/*
 * A read is done: completely, so that the leaf has no more rows below the
 * bound, or as far as next, the first seq that was not dealt with.
 */
void
relay_rules_read_done(RelayRules *rules, const RelayRead *read, bool complete, int64_t next)
{
	RelayLeaf  *leaf = &rules->leaf[read->leaf];

	rules->read_failed = false;
	if (read->late)
	{
		leaf->late = complete && read->upto < RELAY_SEQ_MAX ? RELAY_LEAF_UNREAD : RELAY_LEAF_CLEAN;
		leaf->late_from = read->upto + 1;
		if (leaf->state != RELAY_LEAF_CLEAN && read->upto >= leaf->position - 1)
			leaf->late = RELAY_LEAF_CLEAN;
		if (!complete)
			relay_lower(rules, read->leaf, next);
		return;
	}
	if (!complete)
		leaf->position = next;
	else if (read->upto == RELAY_SEQ_MAX)
		leaf->state = RELAY_LEAF_CLEAN;
	else
	{
		/* look for its next row, or two leaves would pass each other seq by seq */
		leaf->state = RELAY_LEAF_UNREAD;
		leaf->position = read->upto + 1;
	}
	if (leaf->lowered)
		relay_lower(rules, read->leaf, leaf->lowered_to);
}

/* A read raised an error: pause. */
void
relay_rules_read_failed(RelayRules *rules, int64_t now)
{
	rules->read_failed = true;
	rules->read_not_before = now + DATABASE_PAUSE;
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
		if (!rules->partition[place].behind.any && !relay_over_share(rules, place, now))
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

/* A row for which its key has no room now: it waits, or is left behind. */
static RelayVerdict
wait_or_leave(RelayRules *rules, const RelayRow *row, int k, int64_t now, uint64_t *ticket)
{
	RelayKey   *key = &rules->key[k];
	int			i;

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
look_at(RelayRules *rules, const RelayRead *read, const RelayRow *row, int64_t now, uint64_t *ticket)
{
	RelayTopic *topic = &rules->topic[row->topic];
	int			k;

	if (relay_entry_find(rules, row) != NONE)
		return RELAY_SKIP;
	if (read->alone)
		return row_alone(rules, read, row, now, ticket);
	if (rules->stream != RELAY_STREAM_OPEN || rules->holds_wanted || window_full(rules))
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
		!(topic->state == RELAY_TOPIC_PROBING && !topic->probe_sent && topic->in_flight == 0))
	{
		relay_leave(&topic->behind, row);
		return RELAY_SKIP;
	}
	return RELAY_PRODUCE;
}

/*
 * What to do with a row just read, and a ticket for it unless it is skipped.
 * For a row without a key, the partition is chosen here.
 */
RelayVerdict
relay_rules_row(RelayRules *rules, const RelayRead *read, RelayRow *row, int64_t now, uint64_t *ticket)
{
	RelayTopic *topic = &rules->topic[row->topic];
	RelayVerdict verdict;
	int			place;
	int			k;
	int			i;

	verdict = look_at(rules, read, row, now, ticket);
	if (verdict != RELAY_PRODUCE)
		return verdict;
	k = relay_key_find(rules, row);

	if (row->key == 0)
		row->partition = spread(rules, row->topic, now);
	place = relay_place(rules, row->topic, row->partition);
	if (rules->partition[place].behind.any)
	{
		relay_leave_at(rules, place, row);
		return RELAY_SKIP;
	}
	if (k != NONE)
	{
		verdict = ask_key(rules, row, k);
		if (verdict != RELAY_PRODUCE)
			return verdict;
	}
	if (is_suspect(rules, row))
	{
		relay_key_try(rules, row, now);
		return RELAY_SKIP;		/* read again when it may go */
	}
	if (topic->state == RELAY_TOPIC_PROBING)
		return send_alone(rules, row, k, now, ticket);

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
	RelayVerdict verdict = look_at(rules, read, row, now, &ticket);
	int			k = relay_key_find(rules, row);

	if (verdict == RELAY_PRODUCE && k != NONE)
		verdict = ask_key(rules, row, k);
	if (verdict == RELAY_PRODUCE && row->attempts > 0)
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
		leaf->position = verdict == RELAY_FULL || row->seq == RELAY_SEQ_MAX ? row->seq : row->seq + 1;
	return ticket;
}

/* ---- waiting ---- */

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* When rows that are tried alone, and topics that are probed, become due. */
static int64_t
alone_at(const RelayRules *rules, int64_t now)
{
	int64_t		at = RELAY_NEVER;

	if (rules->in_flight + rules->acknowledged + rules->refused >= rules->window_rows)
		return at;
	for (int k = rules->trying; k != NONE; k = rules->key[k].next_trying)
		if (rules->key[k].try_at > now || relay_key_may_try(rules, &rules->key[k], now))
			at = earlier(at, rules->key[k].try_at);
	for (int t = 0; t < rules->ntopics && rules->counts.stopped_topics > 0; t++)
	{
		const RelayTopic *topic = &rules->topic[t];

		if (topic->state == RELAY_TOPIC_STOPPED && topic->in_flight == 0 &&
			(topic->probe_at > now || !topic->behind.any || relay_passed(rules, topic->behind.seq)))
			at = earlier(at, topic->probe_at);
	}
	return at > rules->read_not_before ? at : rules->read_not_before;
}

static int64_t
stream_at(const RelayRules *rules)
{
	switch (rules->stream)
	{
		case RELAY_STREAM_OPEN:
			break;
		case RELAY_STREAM_DRAINING:
			return rules->give_up_at;
		case RELAY_STREAM_PURGING:
			return earlier(rules->purge_again, rules->give_up_at);
		case RELAY_STREAM_CLOSED:
			return rules->rebuild_at;
	}
	return RELAY_NEVER;
}

/* When something becomes due by itself; RELAY_NEVER: nothing does. */
int64_t
relay_rules_wake_at(const RelayRules *rules, int64_t now)
{
	int64_t		at = earlier(relay_mark_at(rules), stream_at(rules));

	if (rules->nready > 0 && rules->stream == RELAY_STREAM_OPEN &&
		rules->in_flight + rules->acknowledged + rules->refused < rules->window_rows)
		return 0;				/* rows that waited may go */
	if (rules->unnoted.first != NONE)
		at = earlier(at, rules->note_not_before);
	at = earlier(at, alone_at(rules, now));
	if (rules->in_flight > 0)
		at = earlier(at, rules->look_at);
	if (relay_rules_wants_read(rules, RELAY_NEVER))
		at = earlier(at, rules->read_not_before);
	return at;
}

/* Whether something was refused, and has not gone through since. */
bool
relay_rules_retrying(const RelayRules *rules)
{
	return rules->counts.trying_keys > 0 || rules->counts.stopped_topics > 0 ||
		rules->mark_failed || rules->read_failed || rules->stream != RELAY_STREAM_OPEN;
}
