/*-------------------------------------------------------------------------
 *
 * relay_stream.c
 *		The relay's rules: when a producer has ended, and the next one begins.
 *
 * The stream ends with the first row that it is refused for good.  It then takes
 * no more; the library gives back what it has; what Kafka did store is marked;
 * and when the last report is in, a new stream begins with the lowest row that
 * is not stored.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* the library may take so long to send what it has, and reports to come back */
#define PURGE_AGAIN			(USEC_PER_SEC / 4)
#define GIVE_UP				(2 * USEC_PER_SEC)
#define DRAIN				(5 * USEC_PER_SEC)

#define STUCK_MAX			(3600 * USEC_PER_SEC)
#define LOOK_EVERY			(USEC_PER_SEC / 4)

/*
 * The stream has ended.  The next one is made at once if this one got anywhere:
 * stored a row, or found one or a topic that is not to be sent again.
 */
static void
close_stream(RelayRules *rules, int64_t now)
{
	rules->rebuild_backoff = rules->got_on ? 0 :
		rules->rebuild_backoff == 0 ? BACKOFF_MIN :
		rules->rebuild_backoff * 2 < BACKOFF_MAX ? rules->rebuild_backoff * 2 : BACKOFF_MAX;
	rules->stream = RELAY_STREAM_CLOSED;
	rules->rebuild_at = now + rules->rebuild_backoff;
}

/* The stream is of no more use, or could not be made. */
void
relay_rules_stream_failed(RelayRules *rules, int64_t now)
{
	if (rules->stream == RELAY_STREAM_PURGING)
		return;
	if (rules->stream == RELAY_STREAM_CLOSED)
	{
		rules->got_on = false;
		close_stream(rules, now);
		return;
	}
	rules->stream = RELAY_STREAM_PURGING;
	rules->purge = true;
	rules->purge_again = now + PURGE_AGAIN;
	rules->give_up_at = now + GIVE_UP;
	relay_leave_waiting(rules, NONE, &rules->returned);
}

/* The batches of the next stream are smaller: this one takes no more, and ends. */
void
relay_stream_resize(RelayRules *rules, int64_t now)
{
	if (rules->next_batch_bytes >= rules->batch_bytes || rules->stream != RELAY_STREAM_OPEN)
		return;
	rules->stream = RELAY_STREAM_DRAINING;
	rules->give_up_at = now + DRAIN;
	relay_leave_waiting(rules, NONE, &rules->returned);
}

/* What is to be done with the stream now. */
RelayStreamAction
relay_rules_stream_action(RelayRules *rules, int64_t now)
{
	if (rules->stream == RELAY_STREAM_DRAINING)
	{
		rules->got_on = true;
		if (rules->stream_in_flight == 0)
			close_stream(rules, now);
		else if (now >= rules->give_up_at)
			relay_rules_stream_failed(rules, now);
	}
	if (rules->stream == RELAY_STREAM_PURGING)
	{
		if (rules->purge)
		{
			rules->purge = false;
			return RELAY_STREAM_PURGE_QUEUE;
		}
		if (rules->stream_in_flight == 0 || now >= rules->give_up_at)
			close_stream(rules, now);
		else if (now >= rules->purge_again)
		{
			rules->purge_again = RELAY_NEVER;
			return RELAY_STREAM_PURGE_ALL;
		}
	}
	if (rules->stream == RELAY_STREAM_CLOSED && now >= rules->rebuild_at)
		return RELAY_STREAM_REBUILD;
	return RELAY_STREAM_LEAVE;
}

/* A new stream is there; what the old one did not report on is sent again. */
void
relay_rules_stream_built(RelayRules *rules, int64_t now)
{
	rules->stream = RELAY_STREAM_PURGING;	/* what comes back now is returned */
	for (int i = 0; i < rules->used_entries && rules->stream_in_flight > 0; i++)
		if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_STREAM)
			relay_rules_failed(rules, relay_ticket_of(rules, i), RELAY_RETURNED, now);
	rules->stream = RELAY_STREAM_OPEN;
	rules->generation++;
	rules->batch_bytes = rules->next_batch_bytes;
	rules->got_on = false;
	if (rules->usual_way < NEW_WAY)
		rules->usual_way = NEW_WAY;
	rules->counts.rebuilds++;
	relay_release(rules, &rules->returned);
}

/* ---- the probe ---- */

/* The probe is of no more use. */
void
relay_rules_probe_failed(RelayRules *rules, int64_t now)
{
	(void) now;
	rules->probe_broken = true;
}

/* A new probe is there. */
void
relay_rules_probe_built(RelayRules *rules, int64_t now)
{
	rules->probe_broken = false;
	for (int i = 0; i < rules->used_entries; i++)
		if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_PROBE)
			relay_rules_failed(rules, relay_ticket_of(rules, i), RELAY_RETURNED, now);
	for (int t = 0; t < rules->ntopics; t++)
		rules->topic[t].asked = false;
}

/* ---- time ---- */

/*
 * A partition that stands for long while others move, or all of them: the library
 * may have lost it, and a new producer finds it again.  If it doesn't, as when no
 * broker is there, the next one comes later.
 */
static void
look_for_stuck(RelayRules *rules, int64_t now)
{
	int64_t		oldest = now;
	int			place = NONE;
	bool		others_move;

	for (int p = 0; p < rules->used_partitions; p++)
	{
		const RelayPartition *partition = &rules->partition[p];

		if (partition->in_flight > 0 && rules->entry[partition->flight.first].since < oldest)
		{
			oldest = rules->entry[partition->flight.first].since;
			place = p;
		}
	}
	others_move = rules->stored_place != place && now - rules->stored_at <= 10 * USEC_PER_SEC;
	if (!others_move && oldest < rules->stored_at)
		oldest = rules->stored_at;
	if (place == NONE || now - oldest < rules->stuck_wait)
		return;
	rules->stuck_wait = rules->stuck_wait * 2 < STUCK_MAX ? rules->stuck_wait * 2 : STUCK_MAX;
	rules->stuck_place = place;
	relay_rules_stream_failed(rules, now);
}

static void
look_at_probe(RelayRules *rules, int64_t now)
{
	if (rules->in_flight == rules->stream_in_flight)
		return;
	for (int i = 0; i < rules->used_entries; i++)
		if (rules->entry[i].state == RELAY_IN_FLIGHT && rules->entry[i].handle == RELAY_PROBE &&
			now - rules->entry[i].since >= rules->stuck_after)
			rules->probe_broken = true;
}

/* Looks at what changes with time; call it in each turn. */
void
relay_rules_tick(RelayRules *rules, int64_t now)
{
	relay_partitions_tick(rules, now);
	relay_topics_tick(rules, now);
	relay_linger_tick(rules, now);
	if (rules->in_flight == 0 || rules->look_at > now)
		return;
	rules->look_at = now + LOOK_EVERY;
	if (rules->stream == RELAY_STREAM_OPEN)
		look_for_stuck(rules, now);
	look_at_probe(rules, now);
}
