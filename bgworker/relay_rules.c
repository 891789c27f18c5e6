/*-------------------------------------------------------------------------
 *
 * relay_rules.c
 *		The rules of the relay: what to read, hand to Kafka, mark, and when.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_rules.h"

#include <string.h>

#define USEC_PER_SEC		INT64_C(1000000)

/* pause before failed rows are tried again; doubles, and starts over in time */
#define BACKOFF_MIN			USEC_PER_SEC
#define BACKOFF_MAX			(60 * USEC_PER_SEC)
#define BACKOFF_FORGET		(3 * BACKOFF_MAX)

/* pause after an error of the database */
#define DATABASE_PAUSE		USEC_PER_SEC

/* pause while the client library takes no more */
#define QUEUE_PAUSE			(USEC_PER_SEC / 100)

#define NONE				(-1)
#define NOT_DUE				INT64_MAX

/*
 * ---- entries: the rows on their way, found by (leaf, seq, event id) ----
 *
 * The event id belongs to it: after a TRUNCATE another row can have the same
 * seq while the old one is in flight.
 */

static int *
bucket_of(RelayRules *rules, int leaf, int64_t seq)
{
	uint64_t	hash = ((uint64_t) seq + (uint64_t) leaf * UINT64_C(0x1000003)) * UINT64_C(0x9e3779b97f4a7c15);

	return &rules->bucket[hash >> 52];	/* the top 12 bits: RELAY_BUCKETS */
}

static bool
same_row(const RelayRow *a, const RelayRow *b)
{
	return a->seq == b->seq && a->leaf == b->leaf &&
		memcmp(a->event_id, b->event_id, sizeof(a->event_id)) == 0;
}

static int
find_entry(RelayRules *rules, const RelayRow *row)
{
	int			i = *bucket_of(rules, row->leaf, row->seq);

	while (i != NONE && !same_row(&rules->entry[i].row, row))
		i = rules->entry[i].next;
	return i;
}

static int
add_entry(RelayRules *rules, const RelayRow *row)
{
	int			i = rules->free;
	int		   *bucket = bucket_of(rules, row->leaf, row->seq);

	rules->free = rules->entry[i].next;
	rules->entry[i].row = *row;
	rules->entry[i].state = RELAY_IN_FLIGHT;
	rules->entry[i].next = *bucket;
	*bucket = i;
	rules->in_flight++;
	rules->bytes += row->bytes;
	return i;
}

static void
free_entry(RelayRules *rules, int i)
{
	RelayEntry *entry = &rules->entry[i];
	int		   *link = bucket_of(rules, entry->row.leaf, entry->row.seq);

	while (*link != i)
		link = &rules->entry[*link].next;
	*link = entry->next;

	if (entry->state == RELAY_IN_FLIGHT)
		rules->in_flight--;
	else
	{
		rules->acknowledged--;
		rules->leaf[entry->row.leaf].acknowledged--;
	}
	rules->bytes -= entry->row.bytes;
	entry->state = RELAY_FREE;
	entry->next = rules->free;
	rules->free = i;
}

/*
 * A ticket goes with the row through the client library.  It names the entry,
 * and the generation keeps a late report from hitting another row.
 */
static uint64_t
ticket_of(const RelayRules *rules, int i)
{
	return ((uint64_t) rules->generation << 32) | (uint32_t) i;
}

/* The entry of a ticket, NONE when it was forgotten meanwhile. */
static int
entry_of(const RelayRules *rules, uint64_t ticket)
{
	int			i = (int) (ticket & UINT32_MAX);

	if ((uint32_t) (ticket >> 32) != rules->generation ||
		i >= RELAY_WINDOW_ROWS || rules->entry[i].state != RELAY_IN_FLIGHT)
		return NONE;
	return i;
}

/* ---- positions ---- */

static int64_t
later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void
lower_position(RelayLeaf *leaf, int64_t seq)
{
	if (leaf->state == RELAY_LEAF_CLEAN || seq < leaf->position)
		leaf->position = seq;
	if (leaf->state == RELAY_LEAF_CLEAN)
		leaf->state = RELAY_LEAF_DIRTY;
}

/* Starts with nothing known: every leaf is to be looked at. */
void
relay_rules_init(RelayRules *rules)
{
	memset(rules, 0, sizeof(*rules));
	relay_rules_forget(rules);
}

/*
 * Forgets the rows on their way, and looks at every leaf again: the tables are
 * others than before.  Reports of forgotten rows are ignored.
 */
void
relay_rules_forget(RelayRules *rules)
{
	int			i;

	for (i = 0; i < RELAY_BUCKETS; i++)
		rules->bucket[i] = NONE;
	for (i = 0; i < RELAY_WINDOW_ROWS; i++)
	{
		rules->entry[i].state = RELAY_FREE;
		rules->entry[i].next = i + 1 < RELAY_WINDOW_ROWS ? i + 1 : NONE;
	}
	rules->free = 0;
	rules->generation++;
	rules->in_flight = 0;
	rules->acknowledged = 0;
	rules->bytes = 0;
	rules->mark_not_before = 0;
	rules->mark_failed = false;
	rules->read_not_before = 0;
	rules->read_failed = false;
	rules->rows_failed = false;
	rules->retry_at = NOT_DUE;
	rules->backoff = BACKOFF_MIN;
	for (i = 0; i < RELAY_LEAVES; i++)
	{
		rules->leaf[i].acknowledged = 0;
		rules->leaf[i].has_failed = false;
	}
	relay_rules_sweep(rules);
}

/* Looks at every leaf again, from its start. */
void
relay_rules_sweep(RelayRules *rules)
{
	for (int i = 0; i < RELAY_LEAVES; i++)
	{
		rules->leaf[i].state = RELAY_LEAF_UNREAD;
		rules->leaf[i].position = RELAY_SEQ_MIN;
	}
}

/* There are no tables, so nothing to read before a commit tells of some. */
void
relay_rules_nothing(RelayRules *rules)
{
	for (int i = 0; i < RELAY_LEAVES; i++)
		rules->leaf[i].state = RELAY_LEAF_CLEAN;
}

/* A transaction committed unpublished rows of a leaf, seq the lowest of them. */
void
relay_rules_hint(RelayRules *rules, int leaf, int64_t seq)
{
	lower_position(&rules->leaf[leaf], seq);
}

/* Reads the rows that failed again, if their pause is over. */
static void
retry_failed(RelayRules *rules, int64_t now)
{
	if (rules->retry_at > now)
		return;
	rules->retry_at = NOT_DUE;
	for (int i = 0; i < RELAY_LEAVES; i++)
	{
		if (rules->leaf[i].has_failed)
			lower_position(&rules->leaf[i], rules->leaf[i].failed);
		rules->leaf[i].has_failed = false;
	}
}

/* ---- reading ---- */

static bool
window_full(const RelayRules *rules)
{
	return rules->free == NONE || rules->bytes >= RELAY_WINDOW_BYTES;
}

/* Whether there is something to read now. */
bool
relay_rules_wants_read(RelayRules *rules, int64_t now)
{
	retry_failed(rules, now);
	if (rules->read_not_before > now || window_full(rules))
		return false;
	for (int i = 0; i < RELAY_LEAVES; i++)
		if (rules->leaf[i].state != RELAY_LEAF_CLEAN)
			return true;
	return false;
}

/*
 * The next read; false when there is none.
 *
 * Leaves that are not known come first, by a look at their first unpublished
 * row, so that all positions are those of rows.  Then the leaf with the lowest
 * position is read as far as the next leaf's position: rows of several leaves
 * go out in the order of their seq.
 */
bool
relay_rules_next_read(const RelayRules *rules, RelayRead *read)
{
	int			lowest = NONE;

	for (int i = 0; i < RELAY_LEAVES; i++)
	{
		if (rules->leaf[i].state == RELAY_LEAF_UNREAD)
		{
			*read = (RelayRead) {i, rules->leaf[i].position, RELAY_SEQ_MAX, 1, true};
			return true;
		}
		if (rules->leaf[i].state == RELAY_LEAF_DIRTY &&
			(lowest == NONE || rules->leaf[i].position < rules->leaf[lowest].position))
			lowest = i;
	}
	if (lowest == NONE)
		return false;

	*read = (RelayRead) {lowest, rules->leaf[lowest].position, RELAY_SEQ_MAX, RELAY_READ_ROWS, false};
	for (int i = 0; i < RELAY_LEAVES; i++)
		if (i != lowest && rules->leaf[i].state == RELAY_LEAF_DIRTY &&
			rules->leaf[i].position <= read->upto)
			read->upto = later(rules->leaf[i].position - 1, read->from);
	return true;
}

/*
 * The read of rows that a committing transaction may have put below the leaf's
 * position; false when the next read takes them anyway.  The position stays,
 * for the transaction may take long to become visible.
 */
bool
relay_rules_late_read(const RelayRules *rules, int leaf, int64_t seq, RelayRead *read)
{
	const RelayLeaf *l = &rules->leaf[leaf];

	if (l->state != RELAY_LEAF_CLEAN && l->position <= seq)
		return false;
	*read = (RelayRead) {leaf, seq, l->state != RELAY_LEAF_CLEAN ? l->position - 1 : RELAY_SEQ_MAX,
	RELAY_READ_ROWS, false};
	return true;
}

/* What to do with a row just read; a ticket for it when it is to be produced. */
RelayVerdict
relay_rules_row(RelayRules *rules, const RelayRow *row, uint64_t *ticket)
{
	if (find_entry(rules, row) != NONE)
		return RELAY_SKIP;
	if (window_full(rules))
		return RELAY_FULL;
	*ticket = ticket_of(rules, add_entry(rules, row));
	return RELAY_PRODUCE;
}

/* The client library's queue is full: the row is read again after a pause. */
void
relay_rules_not_taken(RelayRules *rules, uint64_t ticket, int64_t now)
{
	int			i = entry_of(rules, ticket);

	if (i != NONE)
		free_entry(rules, i);
	rules->read_not_before = now + QUEUE_PAUSE;
}

/* A look at a leaf is done: whether it has an unpublished row, and the first. */
void
relay_rules_peeked(RelayRules *rules, const RelayRead *read, bool found, int64_t seq)
{
	rules->read_failed = false;
	rules->leaf[read->leaf].state = found ? RELAY_LEAF_DIRTY : RELAY_LEAF_CLEAN;
	rules->leaf[read->leaf].position = seq;
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
}

/* A read raised an error: pause. */
void
relay_rules_read_failed(RelayRules *rules, int64_t now)
{
	rules->read_failed = true;
	rules->read_not_before = now + DATABASE_PAUSE;
}

/* ---- reports ---- */

/* Kafka has stored the row. */
void
relay_rules_persisted(RelayRules *rules, uint64_t ticket, int32_t partition,
					  int64_t kafka_offset, int64_t now)
{
	int			i = entry_of(rules, ticket);

	if (i == NONE)
		return;
	rules->entry[i].state = RELAY_ACKNOWLEDGED;
	rules->entry[i].partition = partition;
	rules->entry[i].kafka_offset = kafka_offset;
	if (rules->acknowledged == 0)
		rules->acknowledged_since = now;
	rules->in_flight--;
	rules->acknowledged++;
	rules->leaf[rules->entry[i].row.leaf].acknowledged++;
}

/* Notes a row that is to be tried again, and when. */
static void
try_again(RelayRules *rules, int leaf, int64_t seq, int64_t now)
{
	RelayLeaf  *l = &rules->leaf[leaf];

	if (!l->has_failed || seq < l->failed)
		l->failed = seq;
	l->has_failed = true;
	rules->rows_failed = true;

	if (now - rules->failed_at > BACKOFF_FORGET)
		rules->backoff = BACKOFF_MIN;
	rules->failed_at = now;
	if (rules->retry_at == NOT_DUE)
	{
		rules->retry_at = now + rules->backoff;
		rules->backoff = rules->backoff * 2 < BACKOFF_MAX ? rules->backoff * 2 : BACKOFF_MAX;
	}
}

/* Kafka may not have stored the row: it stays unpublished and is sent again. */
void
relay_rules_failed(RelayRules *rules, uint64_t ticket, int64_t now)
{
	int			i = entry_of(rules, ticket);

	if (i == NONE)
		return;
	try_again(rules, rules->entry[i].row.leaf, rules->entry[i].row.seq, now);
	free_entry(rules, i);
}

/*
 * A row could not be made into a Kafka record: others go on, it is tried again.
 * The rows before it in the read were dealt with.
 */
void
relay_rules_row_failed(RelayRules *rules, const RelayRow *row, int64_t now)
{
	RelayLeaf  *leaf = &rules->leaf[row->leaf];
	int			i = find_entry(rules, row);

	if (i != NONE && rules->entry[i].state == RELAY_IN_FLIGHT)
		free_entry(rules, i);	/* it never reached the client library */
	if (leaf->state == RELAY_LEAF_DIRTY && leaf->position <= row->seq && row->seq < RELAY_SEQ_MAX)
		leaf->position = row->seq + 1;
	try_again(rules, row->leaf, row->seq, now);
}

/* ---- marks ---- */

/* When acknowledged rows are to be marked. */
static int64_t
mark_at(const RelayRules *rules)
{
	int64_t		at = rules->acknowledged_since + RELAY_MARK_USEC;

	if (rules->acknowledged == 0)
		return NOT_DUE;
	if (rules->acknowledged >= RELAY_MARK_ROWS || rules->in_flight == 0)
		at = 0;
	return at > rules->mark_not_before ? at : rules->mark_not_before;
}

bool
relay_rules_mark_due(const RelayRules *rules, int64_t now)
{
	return mark_at(rules) <= now;
}

/* The acknowledged rows of a leaf; entries has room for RELAY_WINDOW_ROWS. */
int
relay_rules_to_mark(const RelayRules *rules, int leaf, const RelayEntry **entries)
{
	int			n = 0;

	for (int i = 0; i < RELAY_WINDOW_ROWS && n < rules->leaf[leaf].acknowledged; i++)
		if (rules->entry[i].state == RELAY_ACKNOWLEDGED && rules->entry[i].row.leaf == leaf)
			entries[n++] = &rules->entry[i];
	return n;
}

/* The acknowledged rows of a leaf are marked, and the marks committed. */
void
relay_rules_marked(RelayRules *rules, int leaf)
{
	for (int i = 0; i < RELAY_WINDOW_ROWS && rules->leaf[leaf].acknowledged > 0; i++)
		if (rules->entry[i].state == RELAY_ACKNOWLEDGED && rules->entry[i].row.leaf == leaf)
			free_entry(rules, i);
	rules->mark_failed = false;
}

/* Marking raised an error: the acknowledgements are kept, and tried later. */
void
relay_rules_mark_failed(RelayRules *rules, int64_t now)
{
	rules->mark_failed = true;
	rules->mark_not_before = now + DATABASE_PAUSE;
}

/* ---- waiting ---- */

/* When something becomes due by itself; RELAY_SEQ_MAX: never. */
int64_t
relay_rules_wake_at(const RelayRules *rules)
{
	int64_t		at = mark_at(rules);

	if (rules->retry_at < at)
		at = rules->retry_at;

	/* a pause of reading matters only if there is something to read */
	for (int i = 0; i < RELAY_LEAVES && !window_full(rules); i++)
		if (rules->leaf[i].state != RELAY_LEAF_CLEAN && rules->read_not_before < at)
			at = rules->read_not_before;
	return at;
}

static bool
all_done(const RelayRules *rules)
{
	for (int i = 0; i < RELAY_LEAVES; i++)
		if (rules->leaf[i].state != RELAY_LEAF_CLEAN)
			return false;
	return rules->in_flight == 0 && rules->retry_at == NOT_DUE;
}

/* Whether something was refused, and has not gone through since. */
bool
relay_rules_retrying(RelayRules *rules)
{
	if (rules->rows_failed && all_done(rules))
		rules->rows_failed = false;
	return rules->rows_failed || rules->mark_failed || rules->read_failed;
}
