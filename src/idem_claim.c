/*-------------------------------------------------------------------------
 *
 * idem_claim.c
 *		Idempotency records: becoming the owner of one, or hearing why not.
 *
 * record_rules.c decides, record_store.c reads and writes, record_answer.c
 * words the answers; this file makes them one call that never waits.
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
#include "idem_shared.h"
#include "idem_uuid.h"
#include "record_answer.h"
#include "record_store.h"

#define USECS_PER_MS		INT64CONST(1000)


/*
 * Each pass of a claim ends in a read or a win, unless a record went in between.
 * The bound is for rows that can be neither seen nor inserted.
 */
#define CLAIM_MAX_PASSES	10

/* most keys of one call: each holds a lock */
#define MANY_MAX_KEYS		1000

/* HTTP status of the answer while nobody can know the outcome */
#define UNKNOWN_STATUS		202

/* columns of idem.idem_claim */
#define CLAIM_COLUMNS		13

/* a claim and how it went */
typedef struct Claim
{
	RecordKey	key;
	bytea	   *request_hash;
	int			naccepted;
	Datum	   *accepted;		/* other hashes of the same request */
	text	   *operation;
	Jsonb	   *context;
	int64		retention;		/* or unset: the setting's */
	RecordClaim claim;

	bool		key_locked;
	RecordDecision decision;
	RecordRow	row;			/* state RECORD_NONE: can't be seen */
} Claim;

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

/* Whether the request is the one that the record stands for. */
static bool
same_request(const Claim *claim)
{
	if (record_same_bytes(claim->row.request_hash, claim->request_hash))
		return true;
	for (int i = 0; i < claim->naccepted; i++)
		if (record_same_bytes(claim->row.request_hash, DatumGetByteaPP(claim->accepted[i])))
			return true;
	return false;
}

static int64
retention_or_setting(int64 retention)
{
	return retention != RECORD_TIME_UNSET ? retention : idem_record_retention * USECS_PER_MINUTE;
}

/* Applies the rules to the row as it was read last. */
static RecordAction
decide(Claim *claim)
{
	claim->row.facts.same_hash = same_request(claim);
	claim->claim.record_retention = retention_or_setting(claim->row.facts.state == RECORD_NONE
														 ? claim->retention : claim->row.retention);
	claim->decision = record_rules_claim(&claim->row.facts, &claim->claim);
	if (claim->decision.action == RECORD_REPLACE)
	{
		/* the new record is kept as this claim says, not as the expired one did */
		claim->claim.record_retention = retention_or_setting(claim->retention);
		claim->decision = record_rules_claim(&claim->row.facts, &claim->claim);
	}
	return claim->decision.action;
}

static void
answer_hidden(Claim *claim)
{
	claim->decision = record_rules_claim_hidden();
	claim->row.facts.state = RECORD_NONE;
}

/*
 * Before this time the sweep finds nothing to do with a record that is claimed
 * now, for its retentions count from its completion.
 */
static TimestampTz
sweep_at(const Claim *claim, int64 retention)
{
	return claim->claim.now + Min(retention_or_setting(retention), idem_response_retention * USECS_PER_MINUTE);
}

/* A new record for this claim. */
static void
new_row(Claim *claim)
{
	memset(&claim->row, 0, sizeof(claim->row));
	claim->row.request_hash = claim->request_hash;
	claim->row.operation = claim->operation;
	claim->row.context = claim->context;
	claim->row.retention = claim->retention;
	claim->row.sweep_at = sweep_at(claim, claim->retention);
	claim->row.created_at = claim->claim.now;
	claim->row.facts.claimed_at = claim->claim.now;
	idem_uuid7_make(&claim->row.resource_id);
}

/* Makes the record UNKNOWN, and says why. */
static void
set_unknown(Claim *claim)
{
	RecordUnknown unknown = {0};

	unknown.tries = claim->decision.tries;
	unknown.at = claim->claim.now;
	unknown.reason = cstring_to_text(claim->decision.tries >= claim->claim.max_tries
									 ? "as many attempts as idem.max_tries allows ended without an answer"
									 : "the lease was over, and the call can't be repeated");
	unknown.status = UNKNOWN_STATUS;
	record_set_unknown(&claim->key, &unknown);
	claim->row.response_status = UNKNOWN_STATUS;
}

/* Carries out a decision on a row that is locked. */
static void
write_locked(Claim *claim)
{
	switch (claim->decision.action)
	{
		case RECORD_REPLACE:
			new_row(claim);
			record_own(&claim->key, &claim->row, &claim->decision);
			break;
		case RECORD_TAKE_OVER:
			claim->row.facts.claimed_at = claim->claim.now;
			claim->row.sweep_at = sweep_at(claim, claim->row.retention);
			record_own(&claim->key, &claim->row, &claim->decision);
			break;
		case RECORD_SET_UNKNOWN:
			set_unknown(claim);
			break;
		default:
			break;				/* decided otherwise since, nothing to write */
	}
}

static void
read_only_error(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot claim an idempotency key in a read-only transaction"),
			 errhint("Only keys that are in progress or answered can be looked up here.")));
}

/*
 * What a claim that would have to write comes to in a read-only transaction.
 * UNKNOWN can be said without writing it down.
 */
static void
claim_read_only(Claim *claim)
{
	if (claim->decision.action != RECORD_SET_UNKNOWN)
		read_only_error();
	claim->decision.action = RECORD_READ_ONLY;
}

/*
 * Looks again with the lock on the key in hand.  Nobody else can make a record or
 * give it another owner now, so what is not there now is not there at all, and an
 * insert meets no row of an open transaction that it would have to wait for.
 * False: a row is there that the transaction's snapshot does not show.
 */
static bool
look_locked(Claim *claim)
{
	bool		shown = claim->row.facts.state != RECORD_NONE;
	RecordRow	latest;

	if (!record_look_latest(&claim->key, &latest))
		memset(&latest, 0, sizeof(latest));
	if (!IsolationUsesXactSnapshot())
	{
		claim->row = latest;
		decide(claim);
		return true;
	}
	return shown || latest.facts.state == RECORD_NONE;
}

/* Takes over, replaces or gives up a record that is there. */
static bool
claim_row(Claim *claim)
{
	if (!record_try_lock_row(&claim->key, &claim->row))
	{
		/* its owner is completing it, or it is being deleted */
		if (!record_look(&claim->key, &claim->row))
			return false;
		if (decide(claim) != RECORD_READ_ONLY)
			answer_hidden(claim);
		return true;
	}
	decide(claim);
	write_locked(claim);
	return true;
}

/*
 * One pass of a claim: look, lock, write.  False: the record went in between,
 * look again.
 *
 * The lock on the key stands for a row that is being made and can't be seen
 * yet.  Whoever can't have it looks once more, since its holder may have
 * committed by now, and else hears IN_PROGRESS.
 */
static bool
claim_pass(Claim *claim)
{
	record_look(&claim->key, &claim->row);
	if (decide(claim) == RECORD_READ_ONLY)
		return true;
	if (XactReadOnly)
	{
		claim_read_only(claim);
		return true;
	}

	if (!claim->key_locked)
		claim->key_locked = record_try_lock_key(&claim->key);
	if (!claim->key_locked)
	{
		record_look(&claim->key, &claim->row);
		if (decide(claim) != RECORD_READ_ONLY)
			answer_hidden(claim);
		return true;
	}

	if (!look_locked(claim))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update")));
	switch (claim->decision.action)
	{
		case RECORD_READ_ONLY:
			return true;
		case RECORD_INSERT:
			new_row(claim);
			return record_insert(&claim->key, &claim->row, &claim->decision);
		default:
			return claim_row(claim);
	}
}

/* Claims, in as many passes as it takes. */
static void
run_claim(Claim *claim)
{
	int			pass = 0;

	while (!claim_pass(claim))
	{
		CHECK_FOR_INTERRUPTS();
		if (++pass == CLAIM_MAX_PASSES)
			record_not_written();
	}

	if (claim->decision.action == RECORD_READ_ONLY)
	{
		/* nothing of ours that others could not see */
		if (claim->key_locked)
			record_unlock_key(&claim->key);
		return;
	}

	/* the caller will act on it: it must survive a crash */
	ForceSyncCommit();
	IDEM_TEST_POINT("claim-inserted");
}

/* The columns of idem.idem_claim. */
static void
claim_columns(Claim *claim, Datum *values, bool *nulls)
{
	RecordDecision *decision = &claim->decision;
	bool		run = record_rules_runs(decision->outcome);
	bool		hidden = claim->row.facts.state == RECORD_NONE || decision->outcome == RECORD_OUTCOME_MISMATCH;
	int64		expires_at = run ? decision->expires_at : hidden ? RECORD_TIME_UNSET : claim->row.facts.expires_at;

	memset(values, 0, sizeof(Datum) * CLAIM_COLUMNS);
	memset(nulls, true, sizeof(bool) * CLAIM_COLUMNS);

#define SET(i, datum) (values[i] = (datum), nulls[i] = false)
	SET(0, CStringGetTextDatum(record_outcome_name(decision->outcome)));
	SET(1, BoolGetDatum(run));
	SET(2, BoolGetDatum(decision->action != RECORD_READ_ONLY));
	if (run)
	{
		SET(3, Int64GetDatum(claim->row.facts.attempt));
		SET(4, UUIDPGetDatum(&claim->row.resource_id));
		if (decision->marks_call)
			SET(5, TimestampTzGetDatum(decision->call_deadline));
		if (claim->row.context != NULL)
			SET(6, JsonbPGetDatum(claim->row.context));
	}
	else
	{
		RecordAnswer answer = record_answer(decision->outcome, decision->retry_after, &claim->row);

		SET(9, Int32GetDatum(answer.status));
		SET(10, JsonbPGetDatum(answer.headers));
		if (answer.body != NULL)
			SET(11, PointerGetDatum(answer.body));
	}
	if (decision->retry_after > 0)
		SET(7, Int32GetDatum(decision->retry_after));
	if (expires_at != RECORD_TIME_UNSET && decision->action != RECORD_SET_UNKNOWN)
		SET(8, TimestampTzGetDatum(expires_at));
	if (decision->outcome == RECORD_OUTCOME_REPLAY)
		SET(12, BoolGetDatum(claim->row.response_body != NULL));
	if (decision->outcome == RECORD_OUTCOME_RESULT_GONE)
		SET(12, BoolGetDatum(false));
#undef SET
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
	run_claim(&claim);
	claim_columns(&claim, values, nulls);
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
	claim_columns(claim, values + 2, nulls + 2);
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
				 errdetail("It must have from 1 to %d.", MANY_MAX_KEYS)));
	if (array_arg(fcinfo, 2, "request_hashes", BYTEAOID, &hashes) != n)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idempotency_keys and request_hashes must have the same length")));
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
		run_claim(&claim);
		put_claim(fcinfo, &claim, Int32GetDatum(i + 1), keys[i]);
		SPI_finish();
	}
	idem_retry_hint_pop(&hint);
	return (Datum) 0;
}

/* Claims a record whose row is locked, for whatever request it stands. */
static void
claim_locked(Claim *claim)
{
	record_look(&claim->key, &claim->row);
	claim->request_hash = claim->row.request_hash;
	if (!record_rules_stale(&claim->row.facts, claim->claim.now))
		elog(ERROR, "a locked idempotency record is not stale");
	decide(claim);
	write_locked(claim);
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
		read_only_error();
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
		claim_locked(&claim);
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
		decide(&claim);

		/* a claim would change it, or it is one's own; as it is, it is in progress */
		if (claim.decision.action == RECORD_TAKE_OVER || claim.decision.action == RECORD_SET_UNKNOWN ||
			claim.decision.outcome == RECORD_OUTCOME_ALREADY_YOURS)
			claim.decision = record_rules_claim_hidden();
		if (claim.decision.action == RECORD_READ_ONLY)
		{
			claim_columns(&claim, values, nulls);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	SPI_finish();
	return (Datum) 0;
}
