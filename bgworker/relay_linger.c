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
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* so often the load is looked at */
#define LOOK_EVERY			(USEC_PER_SEC / 10)

/* rows sent meanwhile that are a load; half as many keep it one */
#define LOAD_ROWS			100

/* so long after it the stream ceases to linger */
#define CALM				(2 * USEC_PER_SEC)

/* the library sends to a partition that has fewer records on their way */
#define SENDABLE			5

/* A row is about to go to a partition. */
void
relay_linger_sends(RelayRules *rules, int place, int64_t now)
{
	rules->load.sent++;
	if (rules->partition[place].in_flight >= SENDABLE)
		rules->load.crowded++;
	if (!relay_confirmed(rules, place, now))
		relay_linger_waits(rules);
}

/* Others wait for this row, for the next of its key or of its partition: they would wait longer. */
void
relay_linger_waits(RelayRules *rules)
{
	rules->load.waited = true;
	rules->lingers = false;
}

/* Whether much was to be sent since the last look. */
static bool
is_loaded(const RelayRules *rules, int64_t now)
{
	const RelayLoad *load = &rules->load;
	int64_t		sent = load->sent * LOOK_EVERY / (now - load->since);

	if (rules->lingers)
		return sent * 2 >= LOAD_ROWS;
	return sent >= LOAD_ROWS && load->crowded * 2 >= load->sent;
}

/* Looks at the load; call it in each turn. */
void
relay_linger_tick(RelayRules *rules, int64_t now)
{
	RelayLoad  *load = &rules->load;

	if (now - load->since < LOOK_EVERY)
		return;
	if (load->waited)
		load->calm_at = now;
	else if (is_loaded(rules, now))
		load->calm_at = load->since + LOOK_EVERY + CALM;	/* the worker may have slept since */
	rules->lingers = now < load->calm_at;
	load->since = now;
	load->sent = load->crowded = 0;
	load->waited = false;
}
