/*-------------------------------------------------------------------------
 *
 * relay_names.h
 *		The numbers by which the relay's rules know topics and keys.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_NAMES_H
#define RELAY_NAMES_H

#include "relay_rules.h"

extern int	relay_names_number(const char *topic);
extern const char *relay_names_topic(int number);
extern uint64 relay_names_key(const char *topic, Datum value, bool isnull);
extern void relay_names_settings(RelayRules *rules);

#endif							/* RELAY_NAMES_H */
