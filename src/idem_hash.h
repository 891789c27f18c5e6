/*-------------------------------------------------------------------------
 *
 * idem_hash.h
 *	  The hash of a JSON value's canonical text, for the other files of src/.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_HASH_H
#define IDEM_HASH_H

#include "common/sha2.h"
#include "utils/jsonb.h"

extern void idem_hash_jsonb(const Jsonb *value,
							uint8 digest[PG_SHA256_DIGEST_LENGTH]);

#endif							/* IDEM_HASH_H */
