/*-------------------------------------------------------------------------
 *
 * record_valid.c
 *		The CHECK of idempotency records.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/typcache.h"

#include "compat.h"
#include "record_row.h"

/*
 * Whether what is never NULL is there.  The table says NOT NULL as well, but a row
 * can be made by hand and given to the function.
 */
static bool
required_columns(const bool *nulls)
{
	return !nulls[COL_PRINCIPAL_ID] && !nulls[COL_IDEMPOTENCY_KEY] && !nulls[COL_REQUEST_HASH] &&
		!nulls[COL_STATE] && !nulls[COL_ATTEMPT] && !nulls[COL_TRIES] && !nulls[COL_CLAIM_XID] &&
		!nulls[COL_RESOURCE_ID] && !nulls[COL_CREATED_AT] && !nulls[COL_CLAIMED_AT] &&
		!nulls[COL_LEASE_EXPIRES_AT] && !nulls[COL_YIELDED] && !nulls[COL_SWEEP_AT];
}

static bool
hash_valid(Datum hash)
{
	Size		bytes = VARSIZE_ANY_EXHDR(DatumGetByteaPP(hash));

	return bytes >= RECORD_HASH_MIN_BYTES && bytes <= RECORD_HASH_MAX_BYTES;
}

/* What belongs to each state. */
static bool
state_valid(const Datum *values, const bool *nulls)
{
	if (record_text_is(values[COL_STATE], "COMPLETED"))
		return !nulls[COL_COMPLETED_AT] && !nulls[COL_RESPONSE_STATUS] &&
			!nulls[COL_RESPONSE_HEADERS] && !nulls[COL_RESPONSE_SIZE] &&
			!nulls[COL_RESPONSE_EXPIRES_AT] &&
			(nulls[COL_VERDICT] || record_text_is(values[COL_VERDICT], "completed") ||
			 record_text_is(values[COL_VERDICT], "not_applied"));

	if (!nulls[COL_COMPLETED_AT] || !nulls[COL_VERDICT])
		return false;
	if (record_text_is(values[COL_STATE], "UNKNOWN"))
		return !nulls[COL_UNKNOWN_AT] && nulls[COL_EXPIRES_AT];
	return record_text_is(values[COL_STATE], "IN_PROGRESS");
}

/*
 * record_valid(record idem.idempotency) -> boolean
 *
 * Whether a record is one that the functions can work with.  Stands in the CHECK
 * of the table; touches no other.
 */
PG_FUNCTION_INFO_V1(record_valid);
Datum
record_valid(PG_FUNCTION_ARGS)
{
	HeapTupleHeader record = PG_GETARG_HEAPTUPLEHEADER(0);
	TupleDesc	tupdesc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(record),
												 HeapTupleHeaderGetTypMod(record));
	HeapTupleData tuple = {0};
	Datum	   *values = palloc(sizeof(Datum) * tupdesc->natts);
	bool	   *nulls = palloc(sizeof(bool) * tupdesc->natts);
	bool		valid;

	record_row_check_columns(tupdesc);
	tuple.t_len = HeapTupleHeaderGetDatumLength(record);
	tuple.t_data = record;
	heap_deform_tuple(&tuple, tupdesc, values, nulls);
	ReleaseTupleDesc(tupdesc);

	valid = required_columns(nulls) && hash_valid(values[COL_REQUEST_HASH]) &&
		nulls[COL_CALL_STARTED_AT] == nulls[COL_CALL_DEADLINE] &&
		nulls[COL_CALL_STARTED_AT] == nulls[COL_CALL_XID] &&
		state_valid(values, nulls);
	PG_RETURN_BOOL(valid);
}
