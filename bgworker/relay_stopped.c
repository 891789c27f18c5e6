/*-------------------------------------------------------------------------
 *
 * relay_stopped.c
 *		The relay's rules: topics, and when one stops and goes on.
 *
 * A topic that takes nothing stops; one of its rows is tried after a pause.  One
 * that was given too large a batch stops until its limit is known, and one whose
 * keys can't be remembered until there is room.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

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
	relay_leave_waiting(rules, topic, &t->behind);
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

/* Whether a topic waits to be probed by a row that was left behind with it. */
bool
relay_topic_awaits_probe(const RelayTopic *topic)
{
	return topic->state == RELAY_TOPIC_PROBING && !topic->probe_sent && topic->in_flight == 0 && topic->behind.any;
}

/*
 * There is room for more keys again: opens the topics that wait for it.  One that is
 * to be probed may have a row that found none, and that no later one may pass: it is
 * read again, also while there is no room.
 */
void
relay_topics_tick(RelayRules *rules, int64_t now)
{
	bool		crowded = rules->max_keys - rules->nkeys <= rules->max_keys / 16;

	for (int t = 0; t < rules->ntopics && rules->counts.stopped_topics > 0; t++)
	{
		RelayTopic *topic = &rules->topic[t];

		if (topic->state == RELAY_TOPIC_CROWDED && !crowded)
			relay_topic_open(rules, t);
		else if (relay_topic_awaits_probe(topic) && (!crowded || topic->probe_at <= now))
		{
			/* no sooner again, for it may not find room for its key */
			topic->probe_at = now + BACKOFF_MIN;
			relay_release(rules, &topic->behind);
		}
	}
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
	relay_stream_resize(rules, now);
	relay_topic_open(rules, topic);
}
