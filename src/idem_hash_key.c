/*-------------------------------------------------------------------------
 *
 * idem_hash_key.c
 *		Secrets of keyed hashes: making, using and retiring them.
 *
 * A secret is in idem.hash_key and, while a hash is made, in memory of this
 * process.  It is never a part of a statement, a parameter, a plan or an error,
 * for all of those can be logged.  So it is written by way of the table's own
 * routines, where a parameter of an INSERT could be logged, and HMAC is the
 * server's: an expression in SQL would have the secret as an argument.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_args.h"

/*
 * As long as the hash at least, as RFC 2104 (section 3) asks; above 64 bytes
 * nothing is gained.
 */
#define SECRET_MIN_BYTES	32
#define SECRET_MAX_BYTES	1024

/* columns of idem.hash_key */
enum
{
	COL_KEY_ID,
	COL_SECRET,
	COL_CREATED_AT,
	NCOLUMNS
};

/* Runs a statement about one key, prepared at its first use in a session. */
static void
run(SPIPlanPtr *plan, const char *sql, text *key_id, bool read_only)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1];

	values[0] = PointerGetDatum(key_id);
	if (*plan == NULL)
	{
		SPIPlanPtr	prepared = SPI_prepare(sql, 1, types);

		if (prepared == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(prepared);
		*plan = prepared;
	}
	if (SPI_execute_plan(*plan, values, NULL, read_only, 0) < 0)
		elog(ERROR, "unexpected result of a statement on idem.hash_key");
}

static void
no_such_key(text *key_id)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("hash key \"%s\" does not exist", text_to_cstring(key_id)),
			 errhint("Make a new one with idem_hash_key_add. If this database was restored from a dump, which holds no secrets, copy idem.hash_key from the old server.")));
}

/* Stores a secret under a new name. */
static void
insert_key(text *key_id, bytea *secret)
{
	Relation	table;
	HeapTuple	tuple;
	Datum		values[NCOLUMNS];
	bool		nulls[NCOLUMNS] = {false};

	values[COL_KEY_ID] = PointerGetDatum(key_id);
	values[COL_SECRET] = PointerGetDatum(secret);
	values[COL_CREATED_AT] = TimestampTzGetDatum(GetCurrentTimestamp());

	table = table_open(get_relname_relid("hash_key", get_namespace_oid("idem", false)), RowExclusiveLock);
	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
	CatalogTupleInsert(table, tuple);
	heap_freetuple(tuple);
	table_close(table, NoLock);
}

/* Raises 42710 when there is a key of this name: a secret is never replaced. */
static void
check_new(text *key_id)
{
	static SPIPlanPtr plan = NULL;

	SPI_connect();
	run(&plan, "SELECT FROM idem.hash_key WHERE key_id OPERATOR(pg_catalog.=) $1", key_id, false);
	if (SPI_processed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("hash key \"%s\" already exists", text_to_cstring(key_id)),
				 errhint("A secret is never replaced. To rotate it, add a key with another name, and accept hashes of the old one until its records have expired.")));
	SPI_finish();
}

/*
 * idem_hash_key_add(key_id text) -> void
 *
 * Makes a key for idem_request_hmac, with a secret of 32 random bytes that
 * nobody sees.
 *
 *	key_id	a name, 1 to 255 characters, no control characters
 *
 * Raises 22004, 22023, 25006, 42710 (there is one of this name).  It is there for
 * others when the transaction has committed.
 */
PG_FUNCTION_INFO_V1(idem_hash_key_add);
Datum
idem_hash_key_add(PG_FUNCTION_ARGS)
{
	text	   *key_id = idem_name_arg(fcinfo, 0, "key_id");
	bytea	   *secret = palloc(VARHDRSZ + SECRET_MIN_BYTES);

	PreventCommandIfReadOnly("idem_hash_key_add()");
	check_new(key_id);
	SET_VARSIZE(secret, VARHDRSZ + SECRET_MIN_BYTES);
	if (!pg_strong_random(VARDATA(secret), SECRET_MIN_BYTES))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random bytes")));
	insert_key(key_id, secret);
	explicit_bzero(VARDATA(secret), SECRET_MIN_BYTES);
	PG_RETURN_VOID();
}

/*
 * idem_hash_key_import(key_id text, secret bytea) -> void
 *
 * The same with a secret that exists elsewhere.  What is written in a statement
 * or given as its parameter may be logged: let it come from a file, as
 * pg_read_binary_file gives it.
 *
 *	key_id	a name, 1 to 255 characters, no control characters
 *	secret	32 to 1,024 bytes
 *
 * Raises 22004, 22023, 25006, 42710.
 */
PG_FUNCTION_INFO_V1(idem_hash_key_import);
Datum
idem_hash_key_import(PG_FUNCTION_ARGS)
{
	text	   *key_id = idem_name_arg(fcinfo, 0, "key_id");
	bytea	   *secret;
	int			bytes;

	idem_require_arg(fcinfo, 1, "secret");
	PreventCommandIfReadOnly("idem_hash_key_import()");
	secret = PG_GETARG_BYTEA_P(1);
	bytes = VARSIZE(secret) - VARHDRSZ;
	if (bytes < SECRET_MIN_BYTES || bytes > SECRET_MAX_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("secret has %d bytes", bytes),
				 errdetail("It must have %d to %d.", SECRET_MIN_BYTES, SECRET_MAX_BYTES),
				 errhint("Take random bytes, such as idem_hash_key_add makes by itself.")));
	check_new(key_id);
	insert_key(key_id, secret);
	PG_RETURN_VOID();
}

/*
 * idem_hash_key_retire(key_id text) -> void
 *
 * Deletes a key.  Hashes made with it can't be made any more: retire it when the
 * records that were claimed with it have expired.
 *
 * Raises 22004, 22023, 25006, 42704 (no such key).
 */
PG_FUNCTION_INFO_V1(idem_hash_key_retire);
Datum
idem_hash_key_retire(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	text	   *key_id = idem_name_arg(fcinfo, 0, "key_id");

	PreventCommandIfReadOnly("idem_hash_key_retire()");
	SPI_connect();
	run(&plan, "DELETE FROM idem.hash_key WHERE key_id OPERATOR(pg_catalog.=) $1", key_id, false);
	if (SPI_processed == 0)
		no_such_key(key_id);
	SPI_finish();
	PG_RETURN_VOID();
}

/* HMAC-SHA-256 (RFC 2104). */
static void
compute_hmac(const bytea *secret, const bytea *message, uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	pg_hmac_ctx *hmac = pg_hmac_create(PG_SHA256);

	if (hmac == NULL ||
		pg_hmac_init(hmac, (const uint8 *) VARDATA_ANY(secret), VARSIZE_ANY_EXHDR(secret)) < 0 ||
		pg_hmac_update(hmac, (const uint8 *) VARDATA_ANY(message), VARSIZE_ANY_EXHDR(message)) < 0 ||
		pg_hmac_final(hmac, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute HMAC: %s", pg_hmac_error(hmac));
	pg_hmac_free(hmac);
}

/*
 * hash_hmac(key_id text, message bytea) -> bytea
 *
 * HMAC-SHA-256 (RFC 2104, 32 bytes) of a message with the secret of a key.  NULL
 * for a NULL message.  Raises 22004, 22023, 42704 (no such key).
 */
PG_FUNCTION_INFO_V1(hash_hmac);
Datum
hash_hmac(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	text	   *key_id = idem_name_arg(fcinfo, 0, "key_id");
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	bytea	   *secret;
	bool		isnull;

	if (PG_ARGISNULL(1))
		PG_RETURN_NULL();
	SPI_connect();
	run(&plan, "SELECT secret FROM idem.hash_key WHERE key_id OPERATOR(pg_catalog.=) $1", key_id, true);
	if (SPI_processed == 0)
		no_such_key(key_id);
	secret = DatumGetByteaPP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	compute_hmac(secret, PG_GETARG_BYTEA_PP(1), (uint8 *) VARDATA(result));
	SPI_finish();
	PG_RETURN_BYTEA_P(result);
}
