/*-------------------------------------------------------------------------
 *
 * relay_linger.c
 *		The relay's rules: whether the stream sends at once, or lingers.
 *
 * A stream that sends at once is the quickest while there is little to send.  When
 * rows come faster than they are acknowledged, the library sends nothing to a
 * partition that has five records or more on their way, and its thread spins on
 * those that wait; what it sends are many small batches, each of which costs the
 * broker as much as a large one.  A stream that lingers (linger.ms) gathers them
 * at no cost, since they wait anyway.
 *
 * A producer can't change that, so the stream is made anew, when nothing is on its
 * way: nothing is sent twice.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* so often the load is looked at */
#define LOOK_EVERY			(USEC_PER_SEC / 4)

/* the library sends to a partition that has fewer records on their way */
#define SENDABLE			5

/*
 * Load in so many looks in a row makes a stream linger.  Calm ends it, for longer each
 * time that load came back soon: brokers remember each producer for a day.
 */
#define LOADED_LOOKS		20
#define CALM_MIN			(2 * USEC_PER_SEC)
#define CALM_MAX			(60 * USEC_PER_SEC)
#define SOON				(60 * USEC_PER_SEC)

/* reports have so many times as long to come in as is usual, within bounds */
#define CHANGE_WAYS			4
#define CHANGE_MIN			(USEC_PER_SEC / 10)
#define CHANGE_MAX			USEC_PER_SEC

/* if they don't, or if brokers are away, the stream stays as it is for so long */
#define CHANGE_AGAIN		(60 * USEC_PER_SEC)

/* A row is about to go to a partition. */
void
relay_linger_sends(RelayRules *rules, const RelayRow *row)
{
	rules->load.sent++;
	if (rules->partition[relay_place(rules, row->topic, row->partition)].in_flight >= SENDABLE)
		rules->load.crowded++;
}

/* Whether the load since the last look calls for a stream that lingers. */
static bool
is_loaded(const RelayRules *rules, int64_t now)
{
	const RelayLoad *load = &rules->load;
	int64_t		sent = load->sent * LOOK_EVERY / (now - load->since);

	/* a key's next row waits for the one before, and would wait longer */
	if (load->waited || rules->waiting > 0)
		return false;
	if (rules->lingers)
		return sent * 2 >= rules->linger_rows;
	return sent >= rules->linger_rows && load->crowded * 2 >= load->sent;
}

/*
 * Begins to end a stream that is to be replaced by one of the other kind.  Rows that
 * wait must not outlive it: nothing would see to it that one of them is the first in
 * its partition, and alone.  They are read again.
 */
static void
change(RelayRules *rules, int64_t now)
{
	int64_t		patience = CHANGE_WAYS * rules->usual_way;

	if (rules->stream != RELAY_STREAM_OPEN || rules->standing > 0 || now < rules->load.change_not_before)
		return;
	rules->stream = RELAY_STREAM_DRAINING;
	rules->changes = true;
	relay_leave_waiting(rules, NONE, &rules->returned);
	rules->give_up_at = now + (patience < CHANGE_MIN ? CHANGE_MIN : patience > CHANGE_MAX ? CHANGE_MAX : patience);
}

/* The stream that was wanted is there. */
void
relay_linger_changed(RelayRules *rules, int64_t now)
{
	RelayLoad  *load = &rules->load;

	if (rules->lingers == rules->next_lingers)
		return;
	rules->lingers = rules->next_lingers;
	if (!rules->lingers)
		load->ended_at = now;
	else if (load->ended_at > 0 && now - load->ended_at < SOON)
		load->calm = load->calm * 2 < CALM_MAX ? load->calm * 2 : CALM_MAX;
	else
		load->calm = CALM_MIN;
}

/*
 * A broker is away, or does not answer: a stream that works now is not given up for
 * one that may not find the others.
 */
void
relay_rules_broker_away(RelayRules *rules, int64_t now)
{
	rules->load.change_not_before = now + CHANGE_AGAIN;
}

/* What the stream should do, by the load since the last look. */
static void
decide(RelayRules *rules, int64_t now)
{
	RelayLoad  *load = &rules->load;

	load->looks = is_loaded(rules, now) ? load->looks + 1 : 0;
	if (load->looks > 0)
		load->at = now;
	if (rules->lingers)
		rules->next_lingers = now - load->at < load->calm;
	else
		rules->next_lingers = load->looks >= LOADED_LOOKS;
}

/* Looks at the load; call it in each turn. */
void
relay_linger_tick(RelayRules *rules, int64_t now)
{
	RelayLoad  *load = &rules->load;

	if (now - load->since < LOOK_EVERY)
		return;
	if (!rules->changes)		/* or nothing is sent, which says nothing */
		decide(rules, now);
	load->since = now;
	load->sent = load->crowded = 0;
	load->waited = false;
	if (rules->next_lingers != rules->lingers)
		change(rules, now);
}

/* When that is to be done though nothing happens. */
int64_t
relay_linger_at(const RelayRules *rules)
{
	int64_t		at = rules->load.since + LOOK_EVERY;

	if (!rules->lingers && !rules->next_lingers)
		return RELAY_NEVER;
	return rules->load.change_not_before > at ? rules->load.change_not_before : at;
}

/* Something does not come back: the stream goes on as it is. */
void
relay_linger_stays(RelayRules *rules, int64_t now)
{
	rules->stream = RELAY_STREAM_OPEN;
	rules->changes = false;
	rules->load.change_not_before = now + CHANGE_AGAIN;
	relay_release(rules, &rules->returned);
	relay_stream_resize(rules, now);
}
