/*-------------------------------------------------------------------------
 *
 * relay_retention.c
 *		How long Kafka keeps the records of a topic.
 *
 * Kafka deletes by the timestamps of records: one that says that it is old is
 * deleted soon, maybe before anybody has read it.  So a row that is older than
 * half the retention of its topic does not go out under its own time.
 *
 * Kafka is asked when there is a row old enough for it to matter.  Until it has
 * answered, and if it doesn't, an hour is taken for the retention.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay_retention.h"
#include "relay_rules.h"

#define ASSUMED_MSEC	INT64CONST(3600000)

/* an answer counts for so long, and is waited for so long */
#define KNOWN_USEC		INT64CONST(600000000)
#define RETRY_USEC		INT64CONST(60000000)

typedef struct Retention
{
	bool		wanted;
	bool		known;
	int64		msec;			/* if known; -1: for ever */
	int64		ask_at;			/* not again before that */
} Retention;

static Retention retentions[RELAY_TOPICS];
static bool any_wanted = false;

/* Whether a row of this age must not go out under its own time. */
bool
relay_retention_is_old(int topic, int64 age_ms)
{
	Retention  *retention = &retentions[topic];

	if (age_ms <= ASSUMED_MSEC / 2 && !(retention->known && retention->msec >= 0))
		return false;
	/* the last number stands for several topics */
	if (topic < RELAY_TOPICS - 1)
		any_wanted = retention->wanted = true;
	if (!retention->known)
		return age_ms > ASSUMED_MSEC / 2;
	return retention->msec >= 0 && age_ms > retention->msec / 2;
}

/* A topic whose retention is to be asked for; RELAY_NONE: there is none. */
int
relay_retention_ask(int64 now)
{
	if (!any_wanted)
		return RELAY_NONE;
	for (int topic = 0; topic < RELAY_TOPICS; topic++)
	{
		Retention  *retention = &retentions[topic];

		if (!retention->wanted)
			continue;
		retention->wanted = false;
		if (now < retention->ask_at)
			continue;
		retention->ask_at = now + RETRY_USEC;
		return topic;
	}
	any_wanted = false;
	return RELAY_NONE;
}

/* Kafka's answer. */
void
relay_retention_learned(int topic, int64 retention_ms, int64 now)
{
	Retention  *retention = &retentions[topic];

	if (retention_ms == RELAY_RETENTION_NOT_LEARNED)
		return;
	retention->known = true;
	retention->msec = retention_ms;
	retention->ask_at = now + KNOWN_USEC;
}
