/*-------------------------------------------------------------------------
 *
 * relay_status.c
 *		What others see of the worker: the view idem.relay_status, and the log.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay.h"

/* Notes an error where idem.relay_status shows it. */
void
relay_note_error(RelayWorker *w, const char *text)
{
	TimestampTz now = GetCurrentTimestamp();
	int			len = pg_mbcliplen(text, strlen(text), sizeof(w->slot->last_error) - 1);

	SpinLockAcquire(&w->slot->mutex);
	memcpy(w->slot->last_error, text, len);
	w->slot->last_error[len] = '\0';
	w->slot->last_error_at = now;
	SpinLockRelease(&w->slot->mutex);
}

static IdemRelayState
current_state(RelayWorker *w)
{
	if (w->brokers[0] == '\0')
		return RELAY_NO_BROKERS;
	if (w->paused)
		return RELAY_PAUSED;
	if (!w->looked)
		return w->slot->state;	/* starting */
	if (!OidIsValid(w->outbox))
		return RELAY_NO_EXTENSION;
	if (w->outage && w->rules.in_flight > 0)
		return RELAY_WAITING_FOR_BROKER;
	if (relay_rules_retrying(&w->rules))
		return RELAY_RETRYING;
	return RELAY_RUNNING;
}

/* Says in the log what the worker waits for, once. */
static void
log_state(RelayWorker *w, IdemRelayState state)
{
	switch (state)
	{
		case RELAY_NO_BROKERS:
			ereport(LOG,
					(errmsg("idem relay: idem.kafka_brokers is empty"),
					 errhint("Set idem.kafka_brokers and reload.")));
			break;
		case RELAY_NO_EXTENSION:
			ereport(LOG,
					(errmsg("idem relay: database \"%s\" has no extension idem", w->database),
					 errhint("Run CREATE EXTENSION idem CASCADE there.")));
			break;
		case RELAY_WAITING_FOR_BROKER:
			ereport(LOG,
					(errmsg("idem relay: no Kafka broker answers at %s", w->brokers),
					 errdetail("Events stay in the outbox and are published when one does.")));
			break;
		case RELAY_RETRYING:
			ereport(LOG,
					(errmsg("idem relay: events or their marks were refused and are tried again"),
					 errdetail("%s", w->slot->last_error)));
			break;
		case RELAY_PAUSED:
			break;				/* said before */
		default:
			ereport(LOG, (errmsg("idem relay: publishing")));
			break;
	}
}

/* Tells shared memory, and the log if the state is another one. */
void
relay_publish_state(RelayWorker *w)
{
	IdemRelayState state = current_state(w);
	const RelayCounts *counts = &w->rules.counts;
	bool		changed = w->slot->state != state;

	SpinLockAcquire(&w->slot->mutex);
	w->slot->state = state;
	w->slot->in_flight = w->rules.in_flight + w->rules.acknowledged;
	w->slot->unmarked = w->rules.acknowledged;
	w->slot->window_rows = w->rules.window_rows;
	w->slot->trying_keys = counts->trying_keys;
	w->slot->held_keys = counts->held_keys;
	w->slot->stopped_topics = counts->stopped_topics;
	w->slot->parked = counts->parked;
	w->slot->rebuilds = counts->rebuilds;
	w->slot->order_violations = counts->order_violations;
	SpinLockRelease(&w->slot->mutex);
	if (changed)
		log_state(w, state);
}

/* Notes what was marked. */
void
relay_count_marks(RelayWorker *w, int marked, int missing)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&w->slot->mutex);
	w->slot->published += marked;
	w->slot->last_published_at = now;
	SpinLockRelease(&w->slot->mutex);

	if (missing > 0)
		ereport(LOG,
				(errmsg("idem relay: %d published events were not found to be marked", missing),
				 errdetail("Their rows were deleted, changed or marked by another hand meanwhile.")));
}

/* Notes a row that Kafka did not take. */
void
relay_count_failure(RelayWorker *w, const char *text)
{
	relay_note_error(w, text);
	SpinLockAcquire(&w->slot->mutex);
	w->slot->failed++;
	SpinLockRelease(&w->slot->mutex);
}
