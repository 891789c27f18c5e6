/*-------------------------------------------------------------------------
 *
 * idem_relay_status.c
 *		What the relay of this database is doing, for the view relay_status.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_guc.h"
#include "idem_shmem.h"

#define NCOLUMNS	20

/* The name of a worker's state, and what to do about it (NULL: nothing). */
static const char *
state_name(IdemRelayState state, const char **hint)
{
	*hint = NULL;
	switch (state)
	{
		case RELAY_NOT_RUNNING:
			*hint = "The worker is starting or restarting; if this lasts, see the server's log.";
			return "not running";
		case RELAY_NO_BROKERS:
			*hint = "Set idem.kafka_brokers and reload.";
			return "no brokers";
		case RELAY_NO_EXTENSION:
			*hint = "Run CREATE EXTENSION idem CASCADE in this database.";
			return "no extension";
		case RELAY_WAITING_FOR_BROKER:
			*hint = "No Kafka broker answers at idem.kafka_brokers; events are published when one does.";
			return "waiting for broker";
		case RELAY_PAUSED:
			*hint = "The worker died twice without publishing anything; last_error names the rows. Look at them and at the server's log; pg_terminate_backend(pid) has the relay try again.";
			return "paused";
		case RELAY_RETRYING:
			*hint = "Events or their marks were refused and are tried again; see last_error.";
			return "retrying";
		case RELAY_RUNNING:
			return "running";
	}
	pg_unreachable();
}

/* The state of a database that no worker ever ran for. */
static const char *
state_without_relay(const char **hint)
{
	const char *name;
	ListCell   *cell;

	if (!idem_preloaded())
	{
		*hint = "Add idem to shared_preload_libraries and restart the server; the functions work without.";
		return "not preloaded";
	}
	name = get_database_name(MyDatabaseId);
	foreach(cell, idem_database_list())
		if (strcmp(lfirst(cell), name) == 0)
			return state_name(RELAY_NOT_RUNNING, hint);
	*hint = "Add this database to idem.databases and restart the server.";
	return "not enabled";
}

static void
set_text(Datum *value, bool *isnull, const char *text)
{
	*isnull = text == NULL || text[0] == '\0';
	if (!*isnull)
		*value = CStringGetTextDatum(text);
}

static void
set_time(Datum *value, bool *isnull, TimestampTz time)
{
	*isnull = time == 0;
	*value = TimestampTzGetDatum(time);
}

/* The columns that only a worker has. */
static void
worker_columns(const IdemRelay *relay, Datum *values, bool *nulls)
{
	bool		running = relay->pid != 0;

	nulls[0] = !running;
	values[0] = Int32GetDatum(relay->pid);
	set_text(&values[3], &nulls[3], running ? relay->brokers : NULL);
	set_text(&values[4], &nulls[4], running ? relay->librdkafka : NULL);
	set_time(&values[5], &nulls[5], running ? relay->started_at : 0);
	nulls[6] = nulls[7] = nulls[8] = false;
	values[6] = Int64GetDatum(relay->in_flight);
	values[7] = Int64GetDatum(relay->published);
	values[8] = Int64GetDatum(relay->failed);
	set_time(&values[9], &nulls[9], relay->last_published_at);
	set_text(&values[10], &nulls[10], relay->last_error);
	set_time(&values[11], &nulls[11], relay->last_error_at);
	for (int i = 12; i < NCOLUMNS; i++)
		nulls[i] = false;
	values[12] = Int64GetDatum(relay->unmarked);
	values[13] = Int64GetDatum(relay->window_rows);
	values[14] = Int64GetDatum(relay->trying_keys);
	values[15] = Int64GetDatum(relay->held_keys);
	values[16] = Int64GetDatum(relay->stopped_topics);
	values[17] = Int64GetDatum(relay->parked);
	values[18] = Int64GetDatum(relay->rebuilds);
	values[19] = Int64GetDatum(relay->order_violations);
}

/*
 * relay_state() -> record
 *
 * One row about the relay of this database: its process, its state in words,
 * what to do about it, and figures.  Reads shared memory only.
 */
PG_FUNCTION_INFO_V1(relay_state);
Datum
relay_state(PG_FUNCTION_ARGS)
{
	IdemRelay  *relay = idem_my_relay();
	TupleDesc	tupdesc;
	Datum		values[NCOLUMNS] = {0};
	bool		nulls[NCOLUMNS];
	const char *state;
	const char *hint;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tupdesc = BlessTupleDesc(tupdesc);
	memset(nulls, true, sizeof(nulls));

	if (relay == NULL)
		state = state_without_relay(&hint);
	else
	{
		IdemRelay	copy;

		/* one look, so that the figures belong together */
		SpinLockAcquire(&relay->mutex);
		memcpy(&copy, relay, sizeof(copy));
		SpinLockRelease(&relay->mutex);

		state = state_name(copy.pid == 0 ? RELAY_NOT_RUNNING : copy.state, &hint);
		worker_columns(&copy, values, nulls);
	}
	set_text(&values[1], &nulls[1], state);
	set_text(&values[2], &nulls[2], hint);

	return HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls));
}
