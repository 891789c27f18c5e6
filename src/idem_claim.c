/*-------------------------------------------------------------------------
 *
 * idem_claim.c
 *		Idempotency records: becoming the owner of one, or hearing why not.
 *
 * The SQL functions; record_claim.c carries a claim out.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_clock.h"
#include "idem_guc.h"
#include "idem_retry.h"
#include "record_claim.h"

#define USECS_PER_MS		INT64CONST(1000)

/* most keys of one call: each holds a lock */
#define MANY_MAX_KEYS		1000

static void
check_hash(const bytea *hash, const char *name)
{
	int			bytes = VARSIZE_ANY_EXHDR(hash);

	if (bytes < RECORD_HASH_MIN_BYTES || bytes > RECORD_HASH_MAX_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s has %d bytes", name, bytes),
				 errdetail("It must have %d to %d.", RECORD_HASH_MIN_BYTES, RECORD_HASH_MAX_BYTES),
				 errhint("Use idem_hash, or the whole digest of another hash function.")));
}

/* The elements of an array argument, none of them NULL. */
static int
array_arg(FunctionCallInfo fcinfo, int argno, const char *name, Oid type, Datum **elements)
{
	bool	   *nulls;
	int			n;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), type, -1, false, TYPALIGN_INT, elements, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not contain null", name)));
	return n;
}

/* The hash of a claim. */
static void
set_hash(Claim *claim, bytea *hash)
{
	check_hash(hash, "request_hash");
	claim->request_hash = hash;
}

/* The arguments that idem_try_insert and idem_try_insert_many share, from 3 on. */
static void
claim_args(FunctionCallInfo fcinfo, Claim *claim)
{
	int64		usec;

	claim->operation = PG_ARGISNULL(3) ? NULL : PG_GETARG_TEXT_PP(3);
	claim->claim.lease = idem_interval_arg(fcinfo, 4, "lease", 1, &usec)
		? usec : idem_lease * USECS_PER_MS;
	claim->claim.call_timeout = idem_interval_arg(fcinfo, 5, "call_timeout", 1, &usec)
		? usec : RECORD_TIME_UNSET;
	claim->claim.dedup_window = idem_interval_arg(fcinfo, 6, "dedup_window", 0, &usec) ? usec : 0;
	claim->context = PG_ARGISNULL(7) ? NULL : PG_GETARG_JSONB_P(7);
	if (!PG_ARGISNULL(8))
		claim->naccepted = array_arg(fcinfo, 8, "also_accept", BYTEAOID, &claim->accepted);
	for (int i = 0; i < claim->naccepted; i++)
		check_hash(DatumGetByteaPP(claim->accepted[i]), "a hash in also_accept");
	claim->retention = idem_interval_arg(fcinfo, 9, "retention", 1, &usec) ? usec : RECORD_TIME_UNSET;

	claim->claim.now = idem_now();
	claim->claim.call_margin = idem_call_margin * USECS_PER_MS;
	claim->claim.max_tries = idem_max_tries;
}

/*
 * idem_try_insert(principal_id, idempotency_key, request_hash, operation,
 *				   lease, call_timeout, dedup_window, context, also_accept,
 *				   retention) -> idem.idem_claim
 *
 * Claims a key for a request, or says why not and what to answer.  Outcomes
 * and arguments are described in the SQL script.
 *
 * Never waits for another transaction.  What it writes belongs to the caller's
 * transaction, whose commit is flushed to disk whatever synchronous_commit
 * says.  Where it writes nothing, it takes no transaction id.
 *
 * Raises 22004, 22023, 25006 (read-only transaction), 40001.
 */
PG_FUNCTION_INFO_V1(idem_try_insert);
Datum
idem_try_insert(PG_FUNCTION_ARGS)
{
	Claim		claim = {0};
	IdemRetryHint hint;
	TupleDesc	tupdesc;
	Datum		values[CLAIM_COLUMNS];
	bool		nulls[CLAIM_COLUMNS];
	Datum		result;

	claim.key.principal_id = idem_name_arg(fcinfo, 0, "principal_id");
	claim.key.idempotency_key = idem_name_arg(fcinfo, 1, "idempotency_key");
	idem_require_arg(fcinfo, 2, "request_hash");
	set_hash(&claim, PG_GETARG_BYTEA_PP(2));
	claim_args(fcinfo, &claim);
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);

	SPI_connect();
	idem_retry_hint_push(&hint);
	record_claim_run(&claim);
	record_claim_columns(&claim, values, nulls);
	result = PointerGetDatum(SPI_returntuple(heap_form_tuple(tupdesc, values, nulls), tupdesc));
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_DATUM(result);
}

/* Puts a claim's columns behind two others into the result set. */
static void
put_claim(FunctionCallInfo fcinfo, Claim *claim, Datum first, Datum second)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[2 + CLAIM_COLUMNS];
	bool		nulls[2 + CLAIM_COLUMNS] = {false, false};

	values[0] = first;
	values[1] = second;
	record_claim_columns(claim, values + 2, nulls + 2);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Says which line an error is about. */
static void
line_context(void *arg)
{
	errcontext("line %d", *(int *) arg + 1);
}

/* Checks all lines before any is claimed. */
static void
check_lines(Datum *keys, Datum *hashes, int n)
{
	int			line;
	ErrorContextCallback context = {error_context_stack, line_context, &line};

	error_context_stack = &context;
	for (line = 0; line < n; line++)
	{
		idem_check_name(DatumGetTextPP(keys[line]), "idempotency_key");
		check_hash(DatumGetByteaPP(hashes[line]), "request_hash");
	}
	error_context_stack = context.previous;
}

/*
 * idem_try_insert_many(principal_id, idempotency_keys, request_hashes, ...)
 *	-> setof (ord, idempotency_key, columns of idem.idem_claim)
 *
 * Claims many keys of one principal, one after the other, in one call.  Never
 * waits, so opposite orders don't deadlock.  Raises what idem_try_insert does,
 * 22023 for lists that don't fit, and 53200 when the lock table is full.
 */
PG_FUNCTION_INFO_V1(idem_try_insert_many);
Datum
idem_try_insert_many(PG_FUNCTION_ARGS)
{
	Claim		template = {0};
	Datum	   *keys;
	Datum	   *hashes;
	int			n;
	IdemRetryHint hint;

	template.key.principal_id = idem_name_arg(fcinfo, 0, "principal_id");
	idem_require_arg(fcinfo, 1, "idempotency_keys");
	idem_require_arg(fcinfo, 2, "request_hashes");
	n = array_arg(fcinfo, 1, "idempotency_keys", TEXTOID, &keys);
	if (n < 1 || n > MANY_MAX_KEYS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idempotency_keys has %d elements", n),
				 errdetail("It must have from 1 to %d.", MANY_MAX_KEYS),
				 errhint("Claim a longer list in several calls.")));
	if (array_arg(fcinfo, 2, "request_hashes", BYTEAOID, &hashes) != n)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idempotency_keys and request_hashes must have the same length"),
				 errhint("Give one hash for each key.")));
	check_lines(keys, hashes, n);
	claim_args(fcinfo, &template);
	InitMaterializedSRF(fcinfo, 0);

	idem_retry_hint_push(&hint);
	for (int i = 0; i < n; i++)
	{
		Claim		claim = template;

		CHECK_FOR_INTERRUPTS();
		claim.key.idempotency_key = DatumGetTextPP(keys[i]);
		set_hash(&claim, DatumGetByteaPP(hashes[i]));
		SPI_connect();
		record_claim_run(&claim);
		put_claim(fcinfo, &claim, Int32GetDatum(i + 1), keys[i]);
		SPI_finish();
	}
	idem_retry_hint_pop(&hint);
	return (Datum) 0;
}

/* Claims a record whose row is locked, for whatever request it stands. */
static void
claim_stale(Claim *claim)
{
	if (!record_try_lock_row(&claim->key, &claim->row) ||
		!record_rules_stale(&claim->row.facts, claim->claim.now))
		elog(ERROR, "a locked idempotency record is not stale");
	claim->request_hash = claim->row.request_hash;
	record_claim_locked(claim);
	ForceSyncCommit();
}

/*
 * idem_claim_stale(operation, max_rows, lease)
 *	-> setof (principal_id, idempotency_key, columns of idem.idem_claim)
 *
 * Claims records of an operation whose lease is over, for a sweeper that finishes
 * what crashed attempts left.  Skips rows that others hold; never waits.  Raises
 * 22004, 22023, 25006.
 */
PG_FUNCTION_INFO_V1(idem_claim_stale);
Datum
idem_claim_stale(PG_FUNCTION_ARGS)
{
	Claim		template = {0};
	RecordKey  *keys;
	int			max_rows;
	int			n;
	int64		usec;
	text	   *operation;
	IdemRetryHint hint;

	idem_require_arg(fcinfo, 0, "operation");
	operation = PG_GETARG_TEXT_PP(0);
	max_rows = idem_count_arg(fcinfo, 1, "max_rows", MANY_MAX_KEYS);
	template.claim.lease = idem_interval_arg(fcinfo, 2, "lease", 1, &usec) ? usec : idem_lease * USECS_PER_MS;
	template.claim.call_timeout = RECORD_TIME_UNSET;
	template.claim.now = idem_now();
	template.claim.max_tries = idem_max_tries;
	template.retention = RECORD_TIME_UNSET;
	if (XactReadOnly)
		record_claim_read_only_error();
	InitMaterializedSRF(fcinfo, 0);

	SPI_connect();
	idem_retry_hint_push(&hint);
	keys = palloc(sizeof(RecordKey) * max_rows);
	n = record_lock_stale(operation, template.claim.now, max_rows, keys);
	for (int i = 0; i < n; i++)
	{
		Claim		claim = template;

		CHECK_FOR_INTERRUPTS();
		claim.key = keys[i];
		claim_stale(&claim);
		put_claim(fcinfo, &claim, PointerGetDatum(keys[i].principal_id), PointerGetDatum(keys[i].idempotency_key));
	}
	idem_retry_hint_pop(&hint);
	SPI_finish();
	return (Datum) 0;
}

/*
 * idem_lookup(principal_id, idempotency_key) -> setof idem.idem_claim
 *
 * The answer that a record holds for whoever claims its key with the same
 * request; no row when there is no record.  Writes nothing.  Raises 22004, 22023.
 */
PG_FUNCTION_INFO_V1(idem_lookup);
Datum
idem_lookup(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Claim		claim = {0};
	Datum		values[CLAIM_COLUMNS];
	bool		nulls[CLAIM_COLUMNS];

	claim.key.principal_id = idem_name_arg(fcinfo, 0, "principal_id");
	claim.key.idempotency_key = idem_name_arg(fcinfo, 1, "idempotency_key");
	claim.claim.now = idem_now();
	claim.claim.call_timeout = RECORD_TIME_UNSET;
	claim.claim.max_tries = PG_INT32_MAX;
	claim.retention = RECORD_TIME_UNSET;
	InitMaterializedSRF(fcinfo, 0);

	SPI_connect();
	if (record_look(&claim.key, &claim.row))
	{
		claim.request_hash = claim.row.request_hash;
		record_claim_decide(&claim);

		/* a claim would change it, or it is one's own; as it is, it is in progress */
		if (claim.decision.action == RECORD_TAKE_OVER || claim.decision.action == RECORD_SET_UNKNOWN ||
			claim.decision.outcome == RECORD_OUTCOME_ALREADY_YOURS)
			claim.decision = record_rules_claim_hidden();
		if (claim.decision.action == RECORD_READ_ONLY)
		{
			record_claim_columns(&claim, values, nulls);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	SPI_finish();
	return (Datum) 0;
}
