/*-------------------------------------------------------------------------
 *
 * relay_parked.c
 *		Refused and parked rows, as the outbox has them.
 *
 * Both in a unit of work of relay_outbox.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "compat.h"
#include "idem_shared.h"
#include "relay_names.h"
#include "relay_parked.h"

#define NOTE_REFUSAL \
	"UPDATE ONLY idem.outbox_%02d SET attempts = $3, last_error = $4," \
	" parked_at = CASE WHEN $5 THEN clock_timestamp() END" \
	" WHERE seq = $1 AND event_id = $2 AND published_at IS NULL AND parked_at IS NULL"

/* by the index of parked rows */
#define READ_PARKED \
	"SELECT seq, event_id, topic, partition_key FROM ONLY idem.outbox_%02d" \
	" WHERE parked_at IS NOT NULL AND published_at IS NULL"

static SPIPlanPtr
prepare(SPIPlanPtr *plans, const char *sql, int leaf, int nargs, Oid *types)
{
	if (plans[leaf] == NULL)
	{
		SPIPlanPtr	plan = SPI_prepare(psprintf(sql, leaf), nargs, types);

		if (plan == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(plan);
		plans[leaf] = plan;
	}
	return plans[leaf];
}

/*
 * Notes that Kafka refused a row by itself, and parks it if that was the last
 * time.  False: there is no such row, unpublished and not parked.
 */
bool
relay_parked_note(const RelayRefusal *refusal, const char *error)
{
	static SPIPlanPtr plans[IDEM_LEAVES];
	Oid			types[5] = {INT8OID, UUIDOID, INT4OID, TEXTOID, BOOLOID};
	Datum		values[5];
	int			rc;

	values[0] = Int64GetDatum(refusal->row.seq);
	values[1] = PointerGetDatum(refusal->row.event_id);
	values[2] = Int32GetDatum(refusal->attempts);
	values[3] = CStringGetTextDatum(error);
	values[4] = BoolGetDatum(refusal->park);
	rc = SPI_execute_plan(prepare(plans, NOTE_REFUSAL, refusal->row.leaf, 5, types), values, NULL, false, 0);
	if (rc != SPI_OK_UPDATE)
		elog(ERROR, "unexpected result of a statement on the outbox: %s", SPI_result_code_string(rc));
	return SPI_processed > 0;
}

/* Gives all parked rows to the sink. */
void
relay_parked_read(RelayParkedSink sink, void *arg)
{
	static SPIPlanPtr plans[IDEM_LEAVES];

	for (int leaf = 0; leaf < IDEM_LEAVES; leaf++)
	{
		int			rc = SPI_execute_plan(prepare(plans, READ_PARKED, leaf, 0, NULL), NULL, NULL, true, 0);

		if (rc != SPI_OK_SELECT)
			elog(ERROR, "unexpected result of a statement on the outbox: %s", SPI_result_code_string(rc));
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			HeapTuple	tuple = SPI_tuptable->vals[i];
			TupleDesc	tupdesc = SPI_tuptable->tupdesc;
			RelayRow	row = {.leaf = leaf};
			bool		isnull;
			char	   *topic = TextDatumGetCString(SPI_getbinval(tuple, tupdesc, 3, &isnull));
			Datum		key;

			row.seq = DatumGetInt64(SPI_getbinval(tuple, tupdesc, 1, &isnull));
			memcpy(row.event_id, DatumGetUUIDP(SPI_getbinval(tuple, tupdesc, 2, &isnull))->data, UUID_LEN);
			row.topic = relay_names_number(topic);
			key = SPI_getbinval(tuple, tupdesc, 4, &isnull);
			row.key = relay_names_key(topic, key, isnull);
			sink(arg, &row);
		}
		SPI_freetuptable(SPI_tuptable);
	}
}
