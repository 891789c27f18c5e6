/*-------------------------------------------------------------------------
 *
 * relay_keys.c
 *		The relay's rules: the order of a key's rows, and what holds it up.
 *
 * A key is remembered while rows of it are on their way, wait, or are held up.
 * Row n + 1 of a key never passes row n: while n is tried alone, or is parked
 * and its topic blocks, all later rows are left behind with the key.
 *
 * A row without a key holds up nothing; when it is tried alone it has a key of
 * its own, made of its event id.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

#include <string.h>

/* ---- the table of keys ---- */

/* Forgets all keys. */
void
relay_keys_init(RelayRules *rules)
{
	for (int i = 0; i < RELAY_BUCKETS; i++)
		rules->key_bucket[i] = NONE;
	for (int k = 0; k < rules->used_keys; k++)
		rules->key[k].queued = false;
	rules->free_key = NONE;
	rules->used_keys = 0;
	rules->nkeys = 0;
	rules->trying = NONE;
	rules->first_ready = 0;
	rules->nready = 0;
	rules->counts.held_keys = 0;
	rules->counts.trying_keys = 0;
}

/* The hash by which the key of a row is known. */
static uint64_t
hash_of(const RelayRow *row)
{
	uint64_t	hash;

	if (row->key != 0)
		return row->key;
	memcpy(&hash, row->event_id + 8, sizeof(hash));
	hash ^= (uint64_t) row->seq * UINT64_C(0x9e3779b97f4a7c15);
	return hash != 0 ? hash : 1;
}

static int *
bucket_of(RelayRules *rules, uint64_t hash)
{
	return &rules->key_bucket[(hash ^ (hash >> 32)) & (RELAY_BUCKETS - 1)];
}

/* The key of a row; NONE when nothing is known of it. */
int
relay_key_find(const RelayRules *rules, const RelayRow *row)
{
	uint64_t	hash;
	int			k;

	if (row->key == 0 && rules->trying == NONE)
		return NONE;
	hash = hash_of(row);
	k = *bucket_of((RelayRules *) rules, hash);
	while (k != NONE && (rules->key[k].hash != hash || rules->key[k].own != (row->key == 0)))
		k = rules->key[k].next_in_bucket;
	return k;
}

/* The same, and begins to know it; NONE: there is no room. */
int
relay_key_add(RelayRules *rules, const RelayRow *row)
{
	int			k = relay_key_find(rules, row);
	RelayKey   *key;
	bool		queued = false;
	int		   *bucket;

	if (k != NONE || rules->nkeys >= rules->max_keys)
		return k;
	k = rules->free_key;
	if (k != NONE)
	{
		rules->free_key = rules->key[k].next_in_bucket;
		queued = rules->key[k].queued;
	}
	else
		k = rules->used_keys++;
	rules->nkeys++;

	key = &rules->key[k];
	memset(key, 0, sizeof(*key));
	key->hash = hash_of(row);
	key->own = row->key == 0;
	key->topic = row->topic;
	key->queued = queued;
	relay_list_init(&key->waiting);
	bucket = bucket_of(rules, key->hash);
	key->next_in_bucket = *bucket;
	*bucket = k;
	return k;
}

/* Forgets a key of which nothing is left to be known. */
void
relay_key_rest(RelayRules *rules, int k)
{
	RelayKey   *key = &rules->key[k];
	int		   *link;

	if (key->hash == 0 || key->state != RELAY_KEY_OPEN || key->in_flight > 0 || key->nwaiting > 0 ||
		key->behind.any)
		return;
	link = bucket_of(rules, key->hash);
	while (*link != k)
		link = &rules->key[*link].next_in_bucket;
	*link = key->next_in_bucket;
	key->hash = 0;
	key->next_in_bucket = rules->free_key;
	rules->free_key = k;
	rules->nkeys--;
}

/* ---- rows that wait for another one of their key ---- */

/* Puts a row among those that wait, by seq. */
void
relay_key_wait(RelayRules *rules, int k, int i)
{
	RelayKey   *key = &rules->key[k];
	int			before = key->waiting.last;

	rules->entry[i].state = RELAY_WAITING;
	while (before != NONE && rules->entry[before].row.seq > rules->entry[i].row.seq)
		before = rules->entry[before].previous;
	if (before == key->waiting.last)
		relay_list_append(rules, &key->waiting, i);
	else
	{
		int			after = before == NONE ? key->waiting.first : rules->entry[before].next;

		rules->entry[i].previous = before;
		rules->entry[i].next = after;
		rules->entry[after].previous = i;
		if (before == NONE)
			key->waiting.first = i;
		else
			rules->entry[before].next = i;
	}
	key->nwaiting++;
	rules->waiting++;
	relay_key_ready(rules, k);
}

/* Leaves the rows of a key behind that wait. */
void
relay_key_drop_waiting(RelayRules *rules, int k, RelayBehind *behind)
{
	RelayKey   *key = &rules->key[k];

	while (key->waiting.first != NONE)
	{
		int			i = key->waiting.first;

		relay_leave(behind, &rules->entry[i].row);
		relay_list_remove(rules, &key->waiting, i);
		relay_entry_free(rules, i);
		key->nwaiting--;
		rules->waiting--;
	}
}

static bool
has_room(const RelayRules *rules, const RelayKey *key)
{
	int			most = rules->topic[key->topic].max_in_flight_per_key;

	return most == 0 || key->in_flight < most;
}

/* Something of a key has come to an end: its next rows may go. */
void
relay_key_ready(RelayRules *rules, int k)
{
	RelayKey   *key = &rules->key[k];

	if (key->hash == 0 || !has_room(rules, key))
		return;
	if (key->nwaiting > 0)
	{
		if (!key->queued)
			rules->ready[(rules->first_ready + rules->nready++) % RELAY_KEYS] = k;
		key->queued = true;
	}
	else if (key->state == RELAY_KEY_OPEN)
		relay_release(rules, &key->behind);
}

/*
 * The next row of those that waited: the caller hands its record to the stream.
 * False: none may go now.
 */
bool
relay_rules_next_waiting(RelayRules *rules, uint64_t *ticket, int64_t now)
{
	while (rules->nready > 0 && rules->stream == RELAY_STREAM_OPEN &&
		   rules->in_flight + rules->acknowledged + rules->refused < rules->window_rows)
	{
		int			k = rules->ready[rules->first_ready];
		RelayKey   *key = &rules->key[k];
		int			i;

		rules->first_ready = (rules->first_ready + 1) % RELAY_KEYS;
		rules->nready--;
		key->queued = false;
		if (key->nwaiting == 0 || !has_room(rules, key))
			continue;
		i = key->waiting.first;
		relay_list_remove(rules, &key->waiting, i);
		key->nwaiting--;
		rules->waiting--;
		relay_linger_waits(rules);
		relay_entry_send(rules, i, RELAY_STREAM, now);
		relay_key_ready(rules, k);
		*ticket = relay_ticket_of(rules, i);
		return true;
	}
	return false;
}

/* ---- rows that are tried alone ---- */

/* Whether this is the row that stops the others of its key. */
bool
relay_key_is_row(const RelayKey *key, const RelayRow *row)
{
	return key->state != RELAY_KEY_OPEN && key->seq == row->seq && key->leaf == row->leaf &&
		memcmp(key->event_id, row->event_id, sizeof(key->event_id)) == 0;
}

/* Rows before the one that stops the key don't wait for it: they are read again. */
static void
release_earlier(RelayRules *rules, RelayKey *key)
{
	if (key->behind.any && key->behind.seq < key->seq)
		relay_release(rules, &key->behind);
}

/* A row stops the later ones of its key, and not the earlier ones. */
static void
stop_at(RelayRules *rules, int k, const RelayRow *row)
{
	RelayKey   *key = &rules->key[k];

	relay_key_drop_waiting(rules, k, &key->behind);
	key->seq = row->seq;
	key->leaf = row->leaf;
	memcpy(key->event_id, row->event_id, sizeof(key->event_id));
	release_earlier(rules, key);
}

/*
 * A row is to be tried alone, from a time on; later rows of its key wait for it.
 * False: there is another one before it, or no room to remember it, and the row
 * is left behind.
 */
bool
relay_key_try(RelayRules *rules, const RelayRow *row, int64_t at)
{
	int			k = relay_key_add(rules, row);
	RelayKey   *key;

	if (k == NONE)
	{
		relay_topic_crowd(rules, row);
		return false;
	}
	key = &rules->key[k];
	if (key->state == RELAY_KEY_TRYING && !relay_key_is_row(key, row))
	{
		RelayRow	other = {.seq = key->seq,.leaf = key->leaf};

		if (row->seq > key->seq || key->try_at == RELAY_NEVER)
		{
			relay_leave(&key->behind, row);
			return false;
		}
		relay_leave(&key->behind, &other);
	}
	if (key->state != RELAY_KEY_TRYING)
	{
		key->was_held = key->state == RELAY_KEY_HELD;
		if (key->was_held)
			rules->counts.held_keys--;
		rules->counts.trying_keys++;
		key->state = RELAY_KEY_TRYING;
		key->previous_trying = NONE;
		key->next_trying = rules->trying;
		if (rules->trying != NONE)
			rules->key[rules->trying].previous_trying = k;
		rules->trying = k;
	}
	stop_at(rules, k, row);
	key->attempts = row->attempts;
	key->try_at = at;
	return true;
}

static void
end_trying(RelayRules *rules, int k)
{
	RelayKey   *key = &rules->key[k];

	if (key->next_trying != NONE)
		rules->key[key->next_trying].previous_trying = key->previous_trying;
	if (key->previous_trying != NONE)
		rules->key[key->previous_trying].next_trying = key->next_trying;
	else
		rules->trying = key->next_trying;
	rules->counts.trying_keys--;
}

/*
 * The row that was tried is to be tried again, from a time on.  An earlier one may
 * have come while it was with Kafka, and goes first.
 */
void
relay_key_try_again(RelayRules *rules, int k, int64_t at)
{
	rules->key[k].try_at = at;
	release_earlier(rules, &rules->key[k]);
}

/* The row that was tried is parked, and holds its key, but no earlier row. */
void
relay_key_hold(RelayRules *rules, int k)
{
	end_trying(rules, k);
	rules->key[k].state = RELAY_KEY_HELD;
	rules->counts.held_keys++;
	release_earlier(rules, &rules->key[k]);
}

/* Nothing stops the later rows of a key any more. */
void
relay_key_open(RelayRules *rules, int k)
{
	RelayKey   *key = &rules->key[k];

	if (key->state == RELAY_KEY_TRYING)
	{
		end_trying(rules, k);
		if (key->was_held)
			rules->holds_wanted = true;
	}
	else if (key->state == RELAY_KEY_HELD)
		rules->counts.held_keys--;
	key->state = RELAY_KEY_OPEN;
	relay_release(rules, &key->behind);
	relay_key_ready(rules, k);
	relay_key_rest(rules, k);
}

/* ---- holds, as the table has them ---- */

/* The parked rows are about to be read: all of them. */
void
relay_rules_holds_begin(RelayRules *rules)
{
	for (int k = 0; k < rules->used_keys; k++)
		rules->key[k].seen = false;
}

/* A parked row, which holds its key unless its topic skips. */
void
relay_rules_hold(RelayRules *rules, const RelayRow *row)
{
	int			k;
	RelayKey   *key;

	if (row->key == 0 || rules->topic[row->topic].skip)
		return;
	k = relay_key_add(rules, row);
	if (k == NONE)
	{
		relay_topic_crowd(rules, row);
		return;
	}
	key = &rules->key[k];
	if (key->state == RELAY_KEY_TRYING)
	{
		key->was_held = true;	/* looked at again when that is over */
		return;
	}
	if (key->state == RELAY_KEY_OPEN)
		rules->counts.held_keys++;
	if (key->state == RELAY_KEY_OPEN || !key->seen || row->seq < key->seq)
		stop_at(rules, k, row);
	key->state = RELAY_KEY_HELD;
	key->seen = true;
}

/* All were read: keys that no parked row holds are let go. */
void
relay_rules_holds_end(RelayRules *rules)
{
	rules->holds_wanted = false;
	for (int k = 0; k < rules->used_keys; k++)
		if (rules->key[k].state == RELAY_KEY_HELD && !rules->key[k].seen)
			relay_key_open(rules, k);
}
