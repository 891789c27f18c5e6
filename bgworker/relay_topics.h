/*-------------------------------------------------------------------------
 *
 * relay_topics.h
 *		The settings of single topics, as idem.topic has them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_TOPICS_H
#define RELAY_TOPICS_H

#include "idem_shared.h"

typedef struct RelayTopicSettings
{
	bool		skip;			/* a parked row does not hold its key */
	bool		send_time;		/* timestamp of the record: the time of sending */
	int			max_in_flight_per_key;	/* 0: no limit */
} RelayTopicSettings;

extern void relay_topics_refresh(IdemRelay *slot);
extern void relay_topics_forget(void);
extern const RelayTopicSettings *relay_topics_get(const char *topic);
extern uint32 relay_topics_version(void);

#endif							/* RELAY_TOPICS_H */
