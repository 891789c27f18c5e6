/*-------------------------------------------------------------------------
 *
 * idem_sweep.c
 *		Idempotency records: removing what has expired.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_clock.h"
#include "idem_retry.h"
#include "record_store.h"

#define SWEEP_MAX_ROWS	10000

/*
 * idem_sweep(max_rows) -> records, responses, more
 *
 * Goes over a batch of records that are due: deletes those that have expired, and
 * drops responses that are no longer kept.  Locks each row without waiting and looks
 * at it again before it goes.  A batch of which nothing goes, since a trigger holds
 * it, has no more behind it: the caller would never end.  Raises 22004, 22023, 40001.
 */
PG_FUNCTION_INFO_V1(idem_sweep);
Datum
idem_sweep(PG_FUNCTION_ARGS)
{
	int			max_rows = idem_count_arg(fcinfo, 0, "max_rows", SWEEP_MAX_ROWS);
	RecordSwept swept;
	IdemRetryHint hint;
	TupleDesc	tupdesc;
	Datum		values[3];
	bool		nulls[3] = {false};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);

	SPI_connect();
	idem_retry_hint_push(&hint);
	swept = record_sweep(idem_now(), max_rows);
	idem_retry_hint_pop(&hint);
	SPI_finish();

	values[0] = Int64GetDatum(swept.deleted);
	values[1] = Int64GetDatum(swept.dropped);
	values[2] = BoolGetDatum(swept.due == max_rows && swept.deleted + swept.dropped > 0);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}
