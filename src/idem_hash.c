/*-------------------------------------------------------------------------
 *
 * idem_hash.c
 *	  idem_hash(jsonb) and idem_hash(text).
 *
 * The canonical text goes into SHA-256 piece by piece and is never built.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "idem_canonical.h"
#include "idem_hash.h"

/* Sink: feed SHA-256. */
static void
update_hash(void *ctx, const char *data, size_t len)
{
	pg_cryptohash_ctx *state = (pg_cryptohash_ctx *) ctx;

	CHECK_FOR_INTERRUPTS();
	if (pg_cryptohash_update(state, (const uint8 *) data, len) < 0)
		elog(ERROR, "could not update SHA-256: %s", pg_cryptohash_error(state));
}

/*
 * Begin a SHA-256.  Gives the sink that takes the text.  The state belongs to
 * the current resource owner, which frees it when an error ends the statement.
 */
CanonicalSink *
idem_hash_begin(IdemHash *hash)
{
	hash->state = pg_cryptohash_create(PG_SHA256);
	if (pg_cryptohash_init(hash->state) < 0)
		elog(ERROR, "could not initialize SHA-256: %s",
			 pg_cryptohash_error(hash->state));
	canonical_init(&hash->sink, update_hash, hash->state);
	return &hash->sink;
}

/* The hash of all that the sink got; frees the state. */
void
idem_hash_finish(IdemHash *hash, uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	canonical_flush(&hash->sink);
	if (pg_cryptohash_final(hash->state, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not finalize SHA-256: %s",
			 pg_cryptohash_error(hash->state));
	pg_cryptohash_free(hash->state);
}

/* SHA-256 of the canonical text of a value, mode exact. */
void
idem_hash_jsonb(const Jsonb *value, uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	IdemHash	hash;

	idem_write_jsonb(idem_hash_begin(&hash), value, CANONICAL_EXACT);
	idem_hash_finish(&hash, digest);
}

static bytea *
finish_bytea(IdemHash *hash)
{
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	idem_hash_finish(hash, (uint8 *) VARDATA(result));
	return result;
}

/*
 * idem_hash(body jsonb, mode text DEFAULT 'exact') -> bytea
 *
 * SHA-256 (32 bytes) of the canonical text of a JSON value as UTF-8 (see
 * idem_canonical), with nothing before or after it.  The text itself is not
 * built.  Two values have one hash exactly when jsonb calls them equal,
 * whatever the database's encoding.
 *
 *	body	any JSON value; NULL gives NULL
 *	mode	exact; or jcs, which refuses numbers that RFC 8785 might write in
 *			another way
 *
 * Raises 22023 for another mode, and what idem_write_jsonb raises.
 *
 * Reads and writes no table; works in any transaction, a read-only one or one
 * on a standby too, and leaves no state behind.
 */
PG_FUNCTION_INFO_V1(idem_hash);
Datum
idem_hash(PG_FUNCTION_ARGS)
{
	Jsonb	   *body = PG_GETARG_JSONB_P(0);
	CanonicalMode mode = idem_canonical_mode(PG_GETARG_TEXT_PP(1));
	IdemHash	hash;

	idem_write_jsonb(idem_hash_begin(&hash), body, mode);
	PG_FREE_IF_COPY(body, 0);
	PG_RETURN_BYTEA_P(finish_bytea(&hash));
}

/*
 * idem_hash(body text, mode text DEFAULT 'exact') -> bytea
 *
 * The same for JSON text, which is read strictly (see idem_canonical_text).  It
 * is the hash that the text's jsonb value has.
 *
 *	body	JSON text (RFC 8259); NULL gives NULL
 *	mode	as above
 *
 * Raises 22023 for another mode, and what idem_write_text raises.
 */
PG_FUNCTION_INFO_V1(idem_hash_text);
Datum
idem_hash_text(PG_FUNCTION_ARGS)
{
	text	   *body = PG_GETARG_TEXT_PP(0);
	CanonicalMode mode = idem_canonical_mode(PG_GETARG_TEXT_PP(1));
	IdemHash	hash;

	idem_write_text(idem_hash_begin(&hash), body, mode);
	PG_FREE_IF_COPY(body, 0);
	PG_RETURN_BYTEA_P(finish_bytea(&hash));
}
