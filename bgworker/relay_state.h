/*-------------------------------------------------------------------------
 *
 * relay_state.h
 *		What the files of the relay's rules share, and nobody else needs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_STATE_H
#define RELAY_STATE_H

#include "relay_rules.h"

#define NONE				RELAY_NONE
#define USEC_PER_SEC		INT64_C(1000000)

/* pauses between attempts double from the first to the second */
#define BACKOFF_MIN			USEC_PER_SEC
#define BACKOFF_MAX			(60 * USEC_PER_SEC)

/* what rows may take at first, when a producer has to find its brokers */
#define NEW_WAY				(USEC_PER_SEC / 8)

/* pause after an error of the database */
#define DATABASE_PAUSE		USEC_PER_SEC

/* relay_entries.c: rows on their way */
extern void relay_list_init(RelayList *list);
extern void relay_list_append(RelayRules *rules, RelayList *list, int i);
extern void relay_list_remove(RelayRules *rules, RelayList *list, int i);
extern int	relay_entry_find(const RelayRules *rules, const RelayRow *row);
extern int	relay_entry_add(RelayRules *rules, const RelayRow *row, int64_t now);
extern void relay_entry_free(RelayRules *rules, int i);
extern uint64_t relay_ticket_of(const RelayRules *rules, int i);
extern int	relay_entry_of(const RelayRules *rules, uint64_t ticket);
extern void relay_entry_send(RelayRules *rules, int i, RelayHandle handle, int64_t now);
extern void relay_entry_arrive(RelayRules *rules, int i);

/* rows left behind */
extern void relay_leave(RelayBehind *behind, const RelayRow *row);
extern void relay_leave_waiting(RelayRules *rules, int topic, RelayBehind *behind);
extern void relay_release(RelayRules *rules, RelayBehind *behind);
extern void relay_lower(RelayRules *rules, int leaf, int64_t seq);
extern bool relay_passed(const RelayRules *rules, int64_t seq);

/* partitions, in relay_partitions.c */
extern int	relay_place(RelayRules *rules, int topic, int32_t number);
extern bool relay_confirmed(const RelayRules *rules, int place, int64_t now);
extern bool relay_may_begin(RelayRules *rules, int place, int64_t now);
extern bool relay_in_doubt(const RelayRules *rules, int place, int64_t now);
extern int	relay_first_on_its_way(RelayRules *rules, int place, int64_t now);
extern int64_t relay_reading_stops_until(const RelayRules *rules, int64_t now);
extern bool relay_over_share(const RelayRules *rules, int place, int64_t now);
extern void relay_leave_at(RelayRules *rules, int place, const RelayRow *row);
extern bool relay_left_before(const RelayRules *rules, int topic, int64_t seq);
extern void relay_partitions_tick(RelayRules *rules, int64_t now);

/* topics, in relay_stopped.c */
extern void relay_topic_stop(RelayRules *rules, int topic, RelayClass reason, int64_t now);
extern void relay_topic_open(RelayRules *rules, int topic);
extern void relay_topic_ask(RelayRules *rules, int topic);
extern void relay_topic_crowd(RelayRules *rules, const RelayRow *row);
extern bool relay_topic_awaits_probe(const RelayTopic *topic);
extern void relay_topics_tick(RelayRules *rules, int64_t now);

/* the stream, in relay_stream.c */
extern void relay_stream_resize(RelayRules *rules, int64_t now);

/* whether it lingers, in relay_linger.c */
extern void relay_linger_sends(RelayRules *rules, int place, int64_t now);
extern void relay_linger_waits(RelayRules *rules);
extern void relay_linger_tick(RelayRules *rules, int64_t now);

/* keys, in relay_keys.c */
extern void relay_keys_init(RelayRules *rules);
extern int	relay_key_find(const RelayRules *rules, const RelayRow *row);
extern int	relay_key_add(RelayRules *rules, const RelayRow *row);
extern void relay_key_rest(RelayRules *rules, int k);
extern void relay_key_open(RelayRules *rules, int k);
extern void relay_key_try_again(RelayRules *rules, int k, int64_t at);
extern void relay_key_hold(RelayRules *rules, int k);
extern bool relay_key_try(RelayRules *rules, const RelayRow *row, int64_t at);
extern bool relay_key_is_row(const RelayKey *key, const RelayRow *row);
extern void relay_key_wait(RelayRules *rules, int k, int i);
extern void relay_key_ready(RelayRules *rules, int k);
extern void relay_key_drop_waiting(RelayRules *rules, int k, RelayBehind *behind);
extern bool relay_window_full(const RelayRules *rules);
extern int64_t relay_mark_at(const RelayRules *rules);
extern bool relay_key_may_try(const RelayRules *rules, const RelayKey *key, int64_t now);

#endif							/* RELAY_STATE_H */
