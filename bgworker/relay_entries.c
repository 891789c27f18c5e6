/*-------------------------------------------------------------------------
 *
 * relay_entries.c
 *		The relay's rules: the rows on their way, and those left behind.
 *
 * A row on its way is found by leaf, seq and event id.  The event id belongs to
 * it: after a TRUNCATE another row can have the same seq while the old one is in
 * flight.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

#include <string.h>

/* ---- lists ---- */

void
relay_list_init(RelayList *list)
{
	list->first = list->last = NONE;
}

void
relay_list_append(RelayRules *rules, RelayList *list, int i)
{
	rules->entry[i].next = NONE;
	rules->entry[i].previous = list->last;
	if (list->last != NONE)
		rules->entry[list->last].next = i;
	else
		list->first = i;
	list->last = i;
}

void
relay_list_remove(RelayRules *rules, RelayList *list, int i)
{
	RelayEntry *entry = &rules->entry[i];

	if (entry->previous != NONE)
		rules->entry[entry->previous].next = entry->next;
	else
		list->first = entry->next;
	if (entry->next != NONE)
		rules->entry[entry->next].previous = entry->previous;
	else
		list->last = entry->previous;
}

/* ---- entries ---- */

static int
bucket_of(int leaf, int64_t seq)
{
	uint64_t	hash = ((uint64_t) seq + (uint64_t) leaf * UINT64_C(0x1000003)) * UINT64_C(0x9e3779b97f4a7c15);

	return (int) (hash >> 40) & (RELAY_BUCKETS - 1);
}

static bool
same_row(const RelayRow *a, const RelayRow *b)
{
	return a->seq == b->seq && a->leaf == b->leaf &&
		memcmp(a->event_id, b->event_id, sizeof(a->event_id)) == 0;
}

int
relay_entry_find(const RelayRules *rules, const RelayRow *row)
{
	int			i = rules->bucket[bucket_of(row->leaf, row->seq)];

	while (i != NONE && !same_row(&rules->entry[i].row, row))
		i = rules->entry[i].next_in_bucket;
	return i;
}

/* Adds a row, in no state yet.  The caller has looked for room. */
int
relay_entry_add(RelayRules *rules, const RelayRow *row, int64_t now)
{
	int			i = rules->free;
	int		   *bucket = &rules->bucket[bucket_of(row->leaf, row->seq)];
	RelayEntry *entry;

	if (i != NONE)
		rules->free = rules->entry[i].next_in_bucket;
	else
		i = rules->used_entries++;
	entry = &rules->entry[i];
	entry->row = *row;
	entry->state = RELAY_FREE;
	entry->number = ++rules->number;
	entry->park = entry->aside = false;
	entry->since = now;
	entry->place = NONE;
	entry->next_in_bucket = *bucket;
	*bucket = i;
	rules->bytes += row->bytes;
	return i;
}

/* Forgets a row, which is in no list any more. */
void
relay_entry_free(RelayRules *rules, int i)
{
	RelayEntry *entry = &rules->entry[i];
	int		   *link = &rules->bucket[bucket_of(entry->row.leaf, entry->row.seq)];

	while (*link != i)
		link = &rules->entry[*link].next_in_bucket;
	*link = entry->next_in_bucket;

	rules->bytes -= entry->row.bytes;
	entry->state = RELAY_FREE;
	entry->next_in_bucket = rules->free;
	rules->free = i;
}

/* A ticket goes with the row through the client library. */
uint64_t
relay_ticket_of(const RelayRules *rules, int i)
{
	return ((uint64_t) rules->entry[i].number << 32) | (uint32_t) i;
}

/* The entry of a ticket, NONE when it was forgotten meanwhile. */
int
relay_entry_of(const RelayRules *rules, uint64_t ticket)
{
	uint32_t	i = (uint32_t) (ticket & UINT32_MAX);

	if (i >= (uint32_t) rules->used_entries || rules->entry[i].state == RELAY_FREE ||
		rules->entry[i].number != (uint32_t) (ticket >> 32))
		return NONE;
	return (int) i;
}

/* A row goes to a producer. */
void
relay_entry_send(RelayRules *rules, int i, RelayHandle handle, int64_t now)
{
	RelayEntry *entry = &rules->entry[i];
	RelayTopic *topic = &rules->topic[entry->row.topic];
	int			k = relay_key_find(rules, &entry->row);

	entry->key = k;
	entry->state = RELAY_IN_FLIGHT;
	entry->handle = handle;
	entry->since = now;
	rules->in_flight++;
	topic->in_flight++;
	topic->bytes += entry->row.bytes;
	if (k != NONE)
		rules->key[k].in_flight++;
	if (handle == RELAY_STREAM)
	{
		RelayPartition *partition;

		entry->place = relay_place(rules, entry->row.topic, entry->row.partition);
		partition = &rules->partition[entry->place];
		partition->in_flight++;
		partition->bytes += entry->row.bytes;
		relay_list_append(rules, &partition->flight, i);
		rules->stream_in_flight++;
	}
}

/* A row comes back from its producer, one way or the other. */
void
relay_entry_arrive(RelayRules *rules, int i)
{
	RelayEntry *entry = &rules->entry[i];
	RelayTopic *topic = &rules->topic[entry->row.topic];

	rules->in_flight--;
	topic->in_flight--;
	topic->bytes -= entry->row.bytes;
	if (entry->key != NONE)
		rules->key[entry->key].in_flight--;
	if (entry->handle == RELAY_STREAM)
	{
		RelayPartition *partition = &rules->partition[entry->place];

		partition->in_flight--;
		partition->bytes -= entry->row.bytes;
		relay_list_remove(rules, &partition->flight, i);
		rules->stream_in_flight--;
	}
}

/* ---- rows left behind ---- */

/* Notes a row that can't go now. */
void
relay_leave(RelayBehind *behind, const RelayRow *row)
{
	if (!behind->any || row->seq < behind->seq)
	{
		behind->seq = row->seq;
		behind->leaf = row->leaf;
	}
	if (!behind->any)
		behind->leaves = 0;
	behind->leaves |= UINT64_C(1) << row->leaf;
	behind->any = true;
}

/* Has them read again. */
void
relay_release(RelayRules *rules, RelayBehind *behind)
{
	if (!behind->any)
		return;
	for (int leaf = 0; leaf < RELAY_LEAVES; leaf++)
		if (behind->leaves & (UINT64_C(1) << leaf))
			relay_lower(rules, leaf, behind->seq);
	behind->any = false;
}

/* Leaves behind a topic's rows that wait for their keys; NONE: those of all. */
void
relay_leave_waiting(RelayRules *rules, int topic, RelayBehind *behind)
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

/* Has a leaf read again from a seq on. */
void
relay_lower(RelayRules *rules, int leaf, int64_t seq)
{
	RelayLeaf  *l = &rules->leaf[leaf];

	if (!l->lowered || seq < l->lowered_to)
		l->lowered_to = seq;
	l->lowered = true;
	if (!rules->lowered || seq < rules->lowered_to)
		rules->lowered_to = seq;
	rules->lowered = true;
	if (l->state == RELAY_LEAF_CLEAN || seq < l->position)
		l->position = seq;
	if (l->state == RELAY_LEAF_CLEAN)
		l->state = RELAY_LEAF_DIRTY;
}

/* Whether all rows up to a seq have been read, and are on their way or behind. */
bool
relay_passed(const RelayRules *rules, int64_t seq)
{
	if (rules->holds_wanted || rules->returned.any)
		return false;
	for (int leaf = 0; leaf < RELAY_LEAVES; leaf++)
	{
		const RelayLeaf *l = &rules->leaf[leaf];

		if ((l->state != RELAY_LEAF_CLEAN && l->position <= seq) ||
			(l->late != RELAY_LEAF_CLEAN && l->late_from <= seq))
			return false;
	}
	return true;
}
