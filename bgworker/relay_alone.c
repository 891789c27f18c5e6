/*-------------------------------------------------------------------------
 *
 * relay_alone.c
 *		The relay's rules: rows that go alone, and what is noted of them.
 *
 * Those are rows that may be at fault, and the first of a topic that was stopped.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* pause for what is not yet to be seen */
#define SHORT_PAUSE			(USEC_PER_SEC / 100)

/* Whether the row that stops a key may be tried now. */
bool
relay_key_may_try(const RelayRules *rules, const RelayKey *key, int64_t now)
{
	const RelayTopic *topic = &rules->topic[key->topic];

	if (key->state != RELAY_KEY_TRYING || key->try_at > now || key->in_flight > 0 || key->nwaiting > 0)
		return false;
	if (topic->state != RELAY_TOPIC_OPEN && topic->state != RELAY_TOPIC_CROWDED &&
		(topic->state != RELAY_TOPIC_PROBING || topic->probe_sent || topic->in_flight > 0))
		return false;
	if (topic->state == RELAY_TOPIC_PROBING && topic->behind.any && topic->behind.seq < key->seq)
		return false;
	return relay_passed(rules, key->seq) && !relay_left_before(rules, key->topic, key->seq);
}

/* A topic that is stopped and may be probed: by its lowest row. */
static bool
next_probe(RelayRules *rules, RelayRead *read, int64_t now)
{
	for (int t = 0; t < rules->ntopics; t++)
	{
		RelayTopic *topic = &rules->topic[t];

		if (topic->state != RELAY_TOPIC_STOPPED || topic->probe_at > now || topic->in_flight > 0)
			continue;
		if (!topic->behind.any)
		{
			/* rows that are tried alone may be all it has */
			topic->state = RELAY_TOPIC_PROBING;
			continue;
		}
		if (!relay_passed(rules, topic->behind.seq))
		{
			if (rules->any_late)
				topic->probe_at = now + SHORT_PAUSE;
			continue;
		}
		*read = (RelayRead) {topic->behind.leaf, topic->behind.seq, topic->behind.seq, 1, false, false, true, t, NONE};
		return true;
	}
	return false;
}

/*
 * The next row to be read and sent alone; false: there is none now.  The caller
 * reads it, gives it to relay_rules_look and relay_rules_row, and says relay_rules_alone_done.
 */
bool
relay_rules_next_alone(RelayRules *rules, RelayRead *read, int64_t now)
{
	rules->met = rules->sent = false;
	if (rules->in_flight + rules->acknowledged + rules->refused >= rules->window_rows ||
		rules->probe_broken || rules->read_not_before > now)
		return false;
	if (rules->counts.stopped_topics > 0 && next_probe(rules, read, now))
		return true;
	for (int k = rules->trying; k != NONE; k = rules->key[k].next_trying)
	{
		RelayKey   *key = &rules->key[k];

		if (!relay_key_may_try(rules, key, now))
		{
			/* a commit may be under way that puts rows before it */
			if (rules->any_late && key->try_at <= now)
				key->try_at = now + SHORT_PAUSE;
			continue;
		}
		*read = (RelayRead) {key->leaf, key->seq, key->seq, 1, false, false, true, NONE, k};
		return true;
	}
	return false;
}

/*
 * Such a read is done.  A row that is gone no longer stops anything; a topic
 * whose lowest row can't be its probe is probed by the next that comes.
 */
void
relay_rules_alone_done(RelayRules *rules, const RelayRead *read)
{
	if (read->key != NONE)
	{
		RelayKey   *key = &rules->key[read->key];

		if (!rules->met && key->state == RELAY_KEY_TRYING)
			relay_key_open(rules, read->key);
		return;
	}
	if (!rules->sent && rules->topic[read->topic].state == RELAY_TOPIC_STOPPED)
	{
		rules->topic[read->topic].state = RELAY_TOPIC_PROBING;
		relay_release(rules, &rules->topic[read->topic].behind);
	}
}

/* ---- refusals, which are noted in the table ---- */

/* The nth refusal to be noted now, from 0 on; false: there are not so many. */
bool
relay_rules_nth_refusal(const RelayRules *rules, int n, RelayRefusal *refusal, int64_t now)
{
	int			i = rules->unnoted.first;

	while (i != NONE && n-- > 0)
		i = rules->entry[i].next;
	if (i == NONE || rules->note_not_before > now)
		return false;
	refusal->row = rules->entry[i].row;
	refusal->ticket = relay_ticket_of(rules, i);
	refusal->attempts = rules->entry[i].row.attempts + 1;
	refusal->park = rules->entry[i].park;
	return true;
}

static int64_t
pause_after(int32_t attempts)
{
	int64_t		pause = BACKOFF_MIN;

	while (--attempts > 0 && pause < BACKOFF_MAX)
		pause *= 2;
	return pause < BACKOFF_MAX ? pause : BACKOFF_MAX;
}

/*
 * A refusal is noted, and committed; or the row was not found: gone, marked or
 * parked by another hand.
 */
void
relay_rules_noted(RelayRules *rules, const RelayRefusal *refusal, bool found, int64_t now)
{
	int			i = relay_entry_of(rules, refusal->ticket);
	int			k;
	RelayKey   *key;

	if (i == NONE || rules->entry[i].state != RELAY_REFUSED)
		return;
	k = relay_key_find(rules, &rules->entry[i].row);
	relay_list_remove(rules, &rules->unnoted, i);
	rules->refused--;
	relay_entry_free(rules, i);
	if (k == NONE)
	{
		/* there was no room for its key, which it holds now */
		rules->counts.parked += found && refusal->park;
		rules->holds_wanted |= found && refusal->park;
		return;
	}
	key = &rules->key[k];
	if (!relay_key_is_row(key, &refusal->row) || key->state != RELAY_KEY_TRYING)
		return;
	if (!found)
		relay_key_open(rules, k);
	else if (!refusal->park)
	{
		key->attempts = refusal->attempts;
		relay_key_try_again(rules, k, now + pause_after(refusal->attempts));
	}
	else
	{
		rules->counts.parked++;
		if (refusal->row.key == 0 || rules->topic[key->topic].skip)
			relay_key_open(rules, k);
		else
			relay_key_hold(rules, k);
	}
}

/* Noting raised an error: it is tried again. */
void
relay_rules_note_failed(RelayRules *rules, int64_t now)
{
	int			i = rules->unnoted.first;

	rules->mark_failed = true;
	rules->note_not_before = now + DATABASE_PAUSE;
	if (i == NONE)
		return;
	/* it may be this row's fault: another one first, the next time */
	relay_list_remove(rules, &rules->unnoted, i);
	relay_list_append(rules, &rules->unnoted, i);
}
