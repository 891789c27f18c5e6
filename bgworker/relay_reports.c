/*-------------------------------------------------------------------------
 *
 * relay_reports.c
 *		The relay's rules: what became of rows that were handed to Kafka.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* pause while the client library takes no more */
#define QUEUE_PAUSE			(USEC_PER_SEC / 100)

/* what a row takes that was on its way for longer says nothing of the others */
#define LONG_WAY			USEC_PER_SEC

/* what rows take is averaged over about so many: fewer when it becomes more */
#define USUAL_ROWS			256
#define USUAL_ROWS_SLOWER	64

/* Whether one ticket is older than another; numbers start over in the end. */
static bool
is_older(uint32_t a, uint32_t b)
{
	return (int32_t) (a - b) < 0;
}

/*
 * The order of a key is broken when the stream was refused a row for its content
 * and stored a later one that it was given afterwards.  Other errors tell nothing:
 * the row may have been stored before, and only the acknowledgement lost.
 */
static void
check_stored(RelayRules *rules, RelayKey *key, const RelayEntry *entry)
{
	if (key->refused && key->low_from == rules->generation && entry->handle == RELAY_STREAM &&
		key->low_seq < entry->row.seq && is_older(key->low_number, entry->number))
		rules->counts.order_violations++;
	if (key->stored && entry->row.seq < key->high_seq)
	{
		if (is_older(entry->number, key->high_number) && entry->partition == key->high_partition &&
			entry->kafka_offset > key->high_offset)
			rules->counts.order_violations++;
		return;
	}
	key->stored = true;
	key->high_seq = entry->row.seq;
	key->high_offset = entry->kafka_offset;
	key->high_partition = entry->partition;
	key->high_number = entry->number;
	key->high_from = rules->generation;
}

static void
check_refused(RelayRules *rules, RelayKey *key, const RelayEntry *entry)
{
	if (key->stored && key->high_from == rules->generation && entry->row.seq < key->high_seq &&
		is_older(entry->number, key->high_number))
		rules->counts.order_violations++;
	if (key->refused && key->low_from == rules->generation && key->low_seq < entry->row.seq)
		return;
	key->refused = true;
	key->low_seq = entry->row.seq;
	key->low_number = entry->number;
	key->low_from = rules->generation;
}

/* The topic takes rows, and so does the partition that the report names. */
static void
note_success(RelayRules *rules, const RelayEntry *entry, int64_t now)
{
	RelayTopic *topic = &rules->topic[entry->row.topic];
	int64_t		way = now - entry->since;
	int64_t		slower;
	int			place;

	if (entry->handle == RELAY_PROBE)
	{
		uint32_t	bytes = entry->row.bytes - RELAY_ROW_OVERHEAD;

		if (topic->limit > 0 && bytes > topic->limit)
			topic->limit = bytes;	/* it takes more by now */
		if (topic->state == RELAY_TOPIC_PROBING)
			relay_topic_open(rules, entry->row.topic);
		return;
	}
	if (topic->state == RELAY_TOPIC_OPEN)
		topic->backoff = BACKOFF_MIN;
	place = relay_place(rules, entry->row.topic, entry->partition);
	rules->partition[place].confirmed = rules->generation;
	topic->begun = rules->generation;
	rules->partition[place].stored_at = now;
	rules->stored_at = now;
	slower = (way < LONG_WAY ? way : LONG_WAY) - rules->usual_way;
	rules->usual_way += slower / (slower > 0 ? USUAL_ROWS_SLOWER : USUAL_ROWS);
	rules->stored_place = entry->place;
	rules->got_on = true;
	if (entry->place == rules->stuck_place)
	{
		rules->stuck_place = NONE;
		rules->stuck_wait = rules->stuck_after;
	}
}

/*
 * Kafka has stored the row: it said where.  Without an offset it is the client
 * library that takes it for stored, since a later batch was: that is so with a
 * broker that knows the producer, and not with a topic that was made anew between
 * the two.  Then it is sent again.
 */
void
relay_rules_persisted(RelayRules *rules, uint64_t ticket, int32_t partition,
					  int64_t kafka_offset, int64_t now)
{
	int			i = relay_entry_of(rules, ticket);
	RelayEntry *entry;
	int			k;

	if (i == NONE || rules->entry[i].state != RELAY_IN_FLIGHT)
		return;
	if (kafka_offset < 0)
	{
		relay_rules_failed(rules, ticket, RELAY_RETURNED, now);
		return;
	}
	relay_entry_arrive(rules, i);
	entry = &rules->entry[i];
	entry->state = RELAY_ACKNOWLEDGED;
	entry->partition = partition;
	entry->kafka_offset = kafka_offset;
	note_success(rules, entry, now);
	entry->since = now;
	if (rules->acknowledged == rules->aside)
		rules->acknowledged_since = now;
	rules->acknowledged++;
	relay_list_append(rules, &rules->leaf[entry->row.leaf].acknowledged, i);
	rules->leaf[entry->row.leaf].nacknowledged++;
	k = entry->key;
	if (k == NONE)
		return;
	check_stored(rules, &rules->key[k], entry);
	if (relay_key_is_row(&rules->key[k], &entry->row))
		relay_key_open(rules, k);
	else
	{
		relay_key_ready(rules, k);
		relay_key_rest(rules, k);
	}
}

/*
 * A row was refused by itself: that is noted in the table, and it is tried again
 * or parked.
 */
static void
refuse(RelayRules *rules, int i)
{
	RelayEntry *entry = &rules->entry[i];

	if (!relay_key_try(rules, &entry->row, RELAY_NEVER))
	{
		relay_entry_free(rules, i); /* another row of its key comes first */
		return;
	}
	entry->state = RELAY_REFUSED;
	entry->park = entry->row.attempts + 1 >= RELAY_ATTEMPTS;
	relay_list_append(rules, &rules->unnoted, i);
	rules->refused++;
}

/* A row of the stream was refused with others, maybe for their fault. */
static void
stream_refused(RelayRules *rules, int i, RelayClass class, int64_t now)
{
	RelayRow	row = rules->entry[i].row;
	RelayTopic *topic = &rules->topic[row.topic];
	uint32_t	bytes = row.bytes - RELAY_ROW_OVERHEAD;
	int			k = relay_key_find(rules, &row);

	/* a batch that the topic's limit or the row's own size rules out was the row alone */
	if (class == RELAY_SIZE &&
		(bytes >= rules->batch_bytes || rules->batch_bytes <= RELAY_BATCH_MIN ||
		 (topic->limit > 0 && rules->batch_bytes <= topic->limit)))
		class = RELAY_ROW;

	if (k != NONE && (class == RELAY_ROW || class == RELAY_SIZE))
		check_refused(rules, &rules->key[k], &rules->entry[i]);
	relay_entry_free(rules, i);
	rules->got_on |= class == RELAY_ROW || class == RELAY_SIZE || class == RELAY_TARGET;
	switch (class)
	{
		case RELAY_ROW:
			relay_key_try(rules, &row, now);
			break;
		case RELAY_SIZE:
			relay_leave(&topic->behind, &row);
			relay_topic_ask(rules, row.topic);
			break;
		case RELAY_TARGET:
		case RELAY_TRANSIENT:
			relay_leave(&topic->behind, &row);
			relay_topic_stop(rules, row.topic, class, now);
			break;
		case RELAY_RETURNED:
			relay_leave(&rules->returned, &row);
			if (rules->stream == RELAY_STREAM_OPEN)
				relay_rules_stream_failed(rules, now);
			break;
	}
}

/* A row is no longer in flight: the next one of its key may go. */
static void
end_flight(RelayRules *rules, const RelayRow *row)
{
	int			k = relay_key_find(rules, row);

	if (k == NONE)
		return;
	relay_key_ready(rules, k);
	relay_key_rest(rules, k);
}

/* A row of the probe comes back without having been refused by itself. */
static void
probe_returned(RelayRules *rules, int i, RelayClass class, int64_t now)
{
	RelayRow	row = rules->entry[i].row;
	RelayTopic *topic = &rules->topic[row.topic];
	int			k = relay_key_find(rules, &row);
	bool		tried = k != NONE && relay_key_is_row(&rules->key[k], &row);

	relay_entry_free(rules, i);
	if (tried)
		relay_key_try_again(rules, k, class == RELAY_RETURNED ? now + BACKOFF_MIN : now);
	else
		relay_leave(&topic->behind, &row);
	if (class != RELAY_RETURNED || topic->state == RELAY_TOPIC_PROBING || !tried)
		relay_topic_stop(rules, row.topic, class == RELAY_RETURNED ? RELAY_TRANSIENT : class, now);
}

/*
 * Kafka may not have stored the row: it stays unpublished and is sent again, in
 * its order.  What is waited for before, the class of the error says.
 */
void
relay_rules_failed(RelayRules *rules, uint64_t ticket, RelayClass class, int64_t now)
{
	int			i = relay_entry_of(rules, ticket);
	RelayRow	row;

	if (i == NONE || rules->entry[i].state != RELAY_IN_FLIGHT)
		return;
	row = rules->entry[i].row;
	relay_entry_arrive(rules, i);
	if (rules->entry[i].handle == RELAY_STREAM)
		stream_refused(rules, i, class, now);
	else if (class == RELAY_ROW || class == RELAY_SIZE)
	{
		int			topic = rules->entry[i].row.topic;

		refuse(rules, i);
		if (rules->topic[topic].state == RELAY_TOPIC_PROBING)
			relay_topic_open(rules, topic); /* it is there, and only this row is wrong */
	}
	else
		probe_returned(rules, i, class, now);
	end_flight(rules, &row);
}

/* The client library did not even take the row; no report will come. */
void
relay_rules_refused(RelayRules *rules, uint64_t ticket, RelayClass class, int64_t now)
{
	int			i = relay_entry_of(rules, ticket);

	if (i == NONE || rules->entry[i].state != RELAY_IN_FLIGHT)
		return;
	if (class != RELAY_ROW && class != RELAY_SIZE)
	{
		relay_rules_failed(rules, ticket, class, now);
		return;
	}
	if (rules->entry[i].handle == RELAY_PROBE)
		relay_rules_failed(rules, ticket, class, now);
	else
	{
		RelayRow	row = rules->entry[i].row;

		relay_entry_arrive(rules, i);
		refuse(rules, i);		/* it was alone, whatever the batch would have been */
		end_flight(rules, &row);
	}
}

/* The client library's queue is full: the row is read again after a pause. */
void
relay_rules_not_taken(RelayRules *rules, uint64_t ticket, int64_t now)
{
	int			i = relay_entry_of(rules, ticket);
	RelayBehind behind = {0};
	RelayRow	row;
	int			k;

	rules->read_not_before = now + QUEUE_PAUSE;
	if (i == NONE || rules->entry[i].state != RELAY_IN_FLIGHT)
		return;
	row = rules->entry[i].row;
	relay_entry_arrive(rules, i);
	if (rules->entry[i].handle == RELAY_PROBE)
	{
		probe_returned(rules, i, RELAY_RETURNED, now);
		end_flight(rules, &row);
		return;
	}
	relay_leave(&behind, &rules->entry[i].row);
	k = relay_key_find(rules, &rules->entry[i].row);
	if (k != NONE)
		relay_key_drop_waiting(rules, k, &behind);
	relay_entry_free(rules, i);
	relay_release(rules, &behind);
	if (k != NONE)
		relay_key_rest(rules, k);
}
