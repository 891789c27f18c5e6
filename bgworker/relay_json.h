/*-------------------------------------------------------------------------
 *
 * relay_json.h
 *		The text of a jsonb.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_JSON_H
#define RELAY_JSON_H

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

extern void relay_json_text(StringInfo out, Jsonb *jb, int limit);

#endif							/* RELAY_JSON_H */
