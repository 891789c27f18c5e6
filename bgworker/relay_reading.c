/*-------------------------------------------------------------------------
 *
 * relay_reading.c
 *		The relay's rules: what to read next, and when.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* Whether no more rows may be on their way. */
bool
relay_window_full(const RelayRules *rules)
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

/* When there is something to read, as far as is known now; RELAY_NEVER: there isn't. */
static int64_t
read_at(const RelayRules *rules, int64_t now)
{
	int64_t		at = relay_reading_stops_until(rules, now);

	if (rules->holds_wanted)
		return rules->read_not_before;
	if (at < rules->read_not_before)
		at = rules->read_not_before;
	if (rules->stream != RELAY_STREAM_OPEN || relay_window_full(rules))
		return RELAY_NEVER;
	for (int i = 0; i < RELAY_LEAVES; i++)
		if (rules->leaf[i].state != RELAY_LEAF_CLEAN)
			return at;
	return RELAY_NEVER;
}

/* Whether there is something to read now. */
bool
relay_rules_wants_read(const RelayRules *rules, int64_t now)
{
	return read_at(rules, now) <= now;
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

	rules->awaited_place = NONE;
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

		if (relay_topic_awaits_probe(topic))
			at = earlier(at, topic->probe_at);
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
	at = earlier(at, rules->release_at);
	return earlier(at, read_at(rules, now));
}

/* Whether something was refused, and has not gone through since. */
bool
relay_rules_retrying(const RelayRules *rules)
{
	return rules->counts.trying_keys > 0 || rules->counts.stopped_topics > 0 ||
		rules->mark_failed || rules->read_failed ||
		(rules->stream == RELAY_STREAM_CLOSED && rules->rebuild_backoff > 0);
}
