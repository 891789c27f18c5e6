/*-------------------------------------------------------------------------
 *
 * relay_run.h
 *		What is remembered of earlier runs of the worker, for the case that one of
 *		its rows ends it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_RUN_H
#define RELAY_RUN_H

#include "relay_rules.h"

/* rows that may be on their way while the worker is careful */
#define RELAY_CAREFUL_ROWS	20

/* unclean ends without a mark between them after which the relay pauses */
#define RELAY_UNCLEAN_ENDS	2

extern int	relay_run_begin(char *rows, size_t size);
extern void relay_run_busy(void);
extern void relay_run_row(const RelayRow *row);
extern void relay_run_marked(void);
extern void relay_run_cut(void);
extern void relay_run_end(void);

#endif							/* RELAY_RUN_H */
