/*-------------------------------------------------------------------------
 *
 * idem_guc.c
 *		Settings of the library idem, and what their values may be.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "compat.h"
#include "idem_guc.h"
#include "idem_shared.h"

#define MINUTES_PER_YEAR	(366 * 24 * 60)
#define MS_PER_DAY			(24 * 60 * 60 * 1000)

char	   *idem_databases = NULL;
char	   *idem_kafka_brokers = NULL;
char	   *idem_source = NULL;
int			idem_relay_window_rows = 2500;
int			idem_relay_window_bytes = 16 * 1024;
int			idem_lease = 30 * 1000;
int			idem_call_margin = 5 * 1000;
int			idem_call_grace = 60 * 1000;
int			idem_mismatch_status = 409;
int			idem_max_tries = 10;
int			idem_max_response_bytes = 1024 * 1024;
int			idem_response_retention = 72 * 60;
int			idem_record_retention = 72 * 60;

/* Splits a list of database names; NIL and *ok = false when it is malformed. */
static List *
split_databases(const char *value, bool *ok)
{
	List	   *names = NIL;

	*ok = SplitIdentifierString(pstrdup(value), ',', &names);
	return *ok ? names : NIL;
}

/* A name that stands in a list twice, or NULL. */
static const char *
repeated_name(List *names)
{
	ListCell   *one;
	ListCell   *other;

	foreach(one, names)
		for_each_from(other, names, foreach_current_index(one) + 1)
			if (strcmp(lfirst(one), lfirst(other)) == 0)
				return lfirst(one);
	return NULL;
}

/* The databases of idem.databases, as a list of C strings. */
List *
idem_database_list(void)
{
	bool		ok;

	return idem_databases ? split_databases(idem_databases, &ok) : NIL;
}

static bool
check_databases(char **newval, void **extra, GucSource source)
{
	bool		ok;
	List	   *names;

	(void) extra;
	(void) source;

	names = split_databases(*newval, &ok);
	if (!ok)
	{
		GUC_check_errdetail("The list of database names has a syntax error.");
		GUC_check_errhint("Separate names by commas, and put those with capitals or special characters into double quotes.");
		return false;
	}
	if (list_length(names) > IDEM_MAX_DATABASES)
	{
		GUC_check_errdetail("The list has %d names; at most %d are possible.",
							list_length(names), IDEM_MAX_DATABASES);
		return false;
	}
	if (repeated_name(names) != NULL)
	{
		/* two workers would publish every event twice */
		GUC_check_errdetail("\"%s\" stands in the list twice.", repeated_name(names));
		return false;
	}
	return true;
}

/* Whether a stretch of text is a TCP port. */
static bool
port_valid(const char *start, const char *end)
{
	long		port = 0;

	if (start == end || end - start > 5)
		return false;
	for (const char *p = start; p < end; p++)
	{
		if (!isdigit((unsigned char) *p))
			return false;
		port = port * 10 + (*p - '0');
	}
	return port > 0 && port <= PG_UINT16_MAX;
}

/* Whether a stretch of text is host:port (or [IPv6 address]:port, or a host). */
static bool
broker_valid(const char *start, const char *end)
{
	const char *colon = NULL;
	const char *p;

	for (p = start; p < end; p++)
	{
		if (*p == ':')
			colon = p;
		else if (!isalnum((unsigned char) *p) && strchr(".-_[]", *p) == NULL)
			return false;
	}
	if (colon == start || start == end)
		return false;
	if (colon == NULL || colon[-1] != ']')
	{
		/* a host name or an IPv4 address: no more than one colon */
		if (colon != NULL && memchr(start, ':', colon - start) != NULL)
			return false;
	}
	return colon == NULL || port_valid(colon + 1, end);
}

static bool
check_kafka_brokers(char **newval, void **extra, GucSource source)
{
	const char *start = *newval;

	(void) extra;
	(void) source;

	if (*start == '\0')
		return true;
	if (strlen(start) >= IDEM_BROKERS_LEN)
	{
		GUC_check_errdetail("The list is longer than %d characters.", IDEM_BROKERS_LEN - 1);
		return false;
	}
	for (;;)
	{
		const char *end = start + strcspn(start, ",");
		const char *first = start;
		const char *last = end;

		while (first < last && isspace((unsigned char) *first))
			first++;
		while (last > first && isspace((unsigned char) last[-1]))
			last--;
		if (!broker_valid(first, last))
		{
			GUC_check_errdetail("\"%.*s\" is not a broker.", (int) (end - start), start);
			GUC_check_errhint("Give host:port, several separated by commas, for example kafka1:9092,kafka2:9092.");
			return false;
		}
		if (*end == '\0')
			return true;
		start = end + 1;
	}
}

/* The settings of the relay. */
static void
define_relay_settings(void)
{
	/*
	 * Workers are registered when the server starts.  Where the library is not
	 * preloaded there is none, but the name must still be known, so that a
	 * leftover line in postgresql.conf is no error.
	 */
	DefineCustomStringVariable("idem.databases",
							   "Databases whose outbox the relay publishes.",
							   "A list of names separated by commas. A worker runs for each; it waits where the extension is not created yet.",
							   &idem_databases,
							   "",
							   process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP,
							   GUC_LIST_INPUT,
							   check_databases, NULL, NULL);
	DefineCustomStringVariable("idem.kafka_brokers",
							   "Kafka brokers that the relay connects to first.",
							   "A list of host:port separated by commas. Empty: the relay waits.",
							   &idem_kafka_brokers,
							   "",
							   PGC_SIGHUP,
							   GUC_LIST_INPUT,
							   check_kafka_brokers, NULL, NULL);
	DefineCustomIntVariable("idem.relay_window_rows",
							"Most events that are handed to Kafka and not yet marked.",
							"So many may be repeated after a crash.",
							&idem_relay_window_rows,
							2500, 1, 10000,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.relay_window_bytes",
							"Most bytes of events that are handed to Kafka and not yet marked.",
							"A larger event goes by itself.",
							&idem_relay_window_bytes,
							16 * 1024, 64, 1024 * 1024,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomStringVariable("idem.source",
							   "The ce_source of published events.",
							   "A URI reference (CloudEvents 1.0). Empty: /idem/ and the name of the database.",
							   &idem_source,
							   "",
							   PGC_SIGHUP,
							   0,
							   NULL, NULL, NULL);
}

static bool
check_mismatch_status(int *newval, void **extra, GucSource source)
{
	(void) extra;
	(void) source;
	if (*newval == 409 || *newval == 422)
		return true;
	GUC_check_errdetail("It must be 409 or 422.");
	return false;
}

/* The settings of idempotency records. */
static void
define_record_settings(void)
{
	DefineCustomIntVariable("idem.lease",
							"How long a claim counts as alive.",
							"For claims that give no lease of their own.",
							&idem_lease,
							30 * 1000, 1, MS_PER_DAY,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.call_margin",
							"How long a lease lasts beyond the deadline of its external call.",
							NULL,
							&idem_call_margin,
							5 * 1000, 0, MS_PER_DAY,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.call_grace",
							"How long after the deadline of its call an operator has to wait before resolving a record.",
							NULL,
							&idem_call_grace,
							60 * 1000, 0, MS_PER_DAY,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.mismatch_status",
							"HTTP status of the answer to a key that was used with another request.",
							"409 or 422.",
							&idem_mismatch_status,
							409, 409, 422,
							PGC_SUSET, 0, check_mismatch_status, NULL, NULL);
	DefineCustomIntVariable("idem.max_tries",
							"How many attempts of a record may end without an answer before it becomes UNKNOWN.",
							NULL,
							&idem_max_tries,
							10, 1, 1000000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.max_response_bytes",
							"Largest response body that is kept.",
							"A larger one completes the record all the same; its size and digest are kept.",
							&idem_max_response_bytes,
							1024 * 1024, 0, 256 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.response_retention",
							"How long a response is replayed, from its completion.",
							NULL,
							&idem_response_retention,
							72 * 60, 1, 10 * MINUTES_PER_YEAR,
							PGC_SUSET, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.record_retention",
							"How long a key is remembered, from its completion.",
							"Longer than idem.response_retention, it leaves a time in which the key is refused.",
							&idem_record_retention,
							72 * 60, 1, 10 * MINUTES_PER_YEAR,
							PGC_SUSET, GUC_UNIT_MIN, NULL, NULL, NULL);
}

/* Defines all settings; called once per process. */
void
idem_guc_init(void)
{
	define_relay_settings();
	define_record_settings();
#ifndef IDEM_TEST
	MarkGUCPrefixReserved("idem");
#endif
}
