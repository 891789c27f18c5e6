/*-------------------------------------------------------------------------
 *
 * idem_hash.h
 *	  SHA-256 of canonical JSON text, for the other files of src/.
 *
 *	IdemHash hash;
 *	CanonicalSink *sink = idem_hash_begin(&hash);
 *
 *	idem_write_jsonb(sink, value, mode);	(idem_canonical.h)
 *	idem_hash_finish(&hash, digest);
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_HASH_H
#define IDEM_HASH_H

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "utils/jsonb.h"

#include "canonical.h"

/*
 * A hash in the making.  On an error the current resource owner frees what it
 * holds.
 */
typedef struct IdemHash
{
	pg_cryptohash_ctx *state;
	CanonicalSink sink;
} IdemHash;

extern CanonicalSink *idem_hash_begin(IdemHash *hash);
extern void idem_hash_finish(IdemHash *hash,
							 uint8 digest[PG_SHA256_DIGEST_LENGTH]);
extern void idem_hash_jsonb(const Jsonb *value,
							uint8 digest[PG_SHA256_DIGEST_LENGTH]);

#endif							/* IDEM_HASH_H */
