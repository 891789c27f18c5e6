/*-------------------------------------------------------------------------
 *
 * relay_parked.h
 *		Refused and parked rows, as the outbox has them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_PARKED_H
#define RELAY_PARKED_H

#include "relay_rules.h"

/* takes a parked row */
typedef void (*RelayParkedSink) (void *arg, const RelayRow *row);

extern bool relay_parked_note(const RelayRefusal *refusal, const char *error);
extern void relay_parked_read(RelayParkedSink sink, void *arg);

#endif							/* RELAY_PARKED_H */
