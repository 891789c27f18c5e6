/*-------------------------------------------------------------------------
 *
 * idem_inbox.c
 *		The inbox: a repeat of an event does nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_retry.h"
#include "idem_shared.h"
#include "idem_uuid.h"

/* leaf for ids without a time, beside the 64 of the ring */
#define INBOX_TIMELESS_SLOT		64

static int16
slot_of(const pg_uuid_t *event_id)
{
	int64		day;

	if (!idem_uuid7_day(event_id, &day))
		return INBOX_TIMELESS_SLOT;
	return (int16) (day % IDEM_LEAVES);
}

/*
 * inbox_slot(event_id uuid) -> smallint
 *
 * The leaf of the inbox for an event id: the UTC day inside a version 7 UUID
 * modulo 64, 64 for every other id.  Immutable: the inbox's CHECK and its
 * uniqueness over all leaves stand on it.
 */
PG_FUNCTION_INFO_V1(inbox_slot);
Datum
inbox_slot(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT16(slot_of(PG_GETARG_UUID_P(0)));
}

/*
 * inbox_apply(consumer text, event_id uuid) -> boolean
 *
 * True the first time that this consumer sees this event, false for a repeat.
 * Writes in the caller's transaction, which a rollback forgets; waits for a
 * concurrent delivery of the same event, under lock_timeout.  No savepoint, no
 * exception for a repeat.
 *
 * Raises 22004 (NULL), 22023 (consumer not of 1 to 255 characters, or with
 * control characters), 40001 (REPEATABLE READ or SERIALIZABLE, and another
 * delivery committed meanwhile), 55P03 (lock_timeout).
 */
PG_FUNCTION_INFO_V1(inbox_apply);
Datum
inbox_apply(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[3] = {TEXTOID, UUIDOID, INT2OID};
	Datum		values[3];
	IdemRetryHint hint;
	bool		is_new;

	values[0] = PointerGetDatum(idem_name_arg(fcinfo, 0, "consumer"));
	idem_require_arg(fcinfo, 1, "event_id");
	values[1] = PG_GETARG_DATUM(1);
	values[2] = Int16GetDatum(slot_of(PG_GETARG_UUID_P(1)));

	SPI_connect();
	idem_retry_hint_push(&hint);
	if (plan == NULL)
	{
		plan = SPI_prepare("INSERT INTO idem.inbox (consumer, event_id, slot) VALUES ($1, $2, $3)"
						   " ON CONFLICT (consumer, event_id, slot) DO NOTHING", 3, types);
		if (plan == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(plan);
	}
	if (SPI_execute_plan(plan, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "unexpected result of an insert into the inbox");
	is_new = SPI_processed == 1;
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_BOOL(is_new);
}
