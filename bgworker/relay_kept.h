/*-------------------------------------------------------------------------
 *
 * relay_kept.h
 *		Records of rows that wait for another one of their key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_KEPT_H
#define RELAY_KEPT_H

#include "relay_record.h"

extern void relay_kept_add(uint64_t ticket, const RelayRecord *record);
extern const RelayRecord *relay_kept_get(uint64_t ticket);
extern void relay_kept_free(uint64_t ticket);
extern void relay_kept_forget(void);

#endif							/* RELAY_KEPT_H */
