/*-------------------------------------------------------------------------
 *
 * idem_uuid.h
 *		Version 7 UUIDs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_UUID_H
#define IDEM_UUID_H

#include "utils/uuid.h"

extern void idem_uuid7_make(pg_uuid_t *uuid);
extern bool idem_uuid7_day(const pg_uuid_t *uuid, int64 *day);

#endif							/* IDEM_UUID_H */
