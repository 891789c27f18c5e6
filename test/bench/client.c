/*-------------------------------------------------------------------------
 *
 * client.c
 *		What the programs of the benchmarks share: their ends of Kafka and the
 *		database.
 *
 *-------------------------------------------------------------------------
 */
#include "client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with a message. */
void
die(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/* What every handle of the library has. */
rd_kafka_conf_t *
make_conf(const char *brokers)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();

	set(conf, "bootstrap.servers", brokers);
	set(conf, "socket.nagle.disable", "true");
	return conf;
}

void
set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
	char		error[256];

	if (rd_kafka_conf_set(conf, name, value, error, sizeof(error)) != RD_KAFKA_CONF_OK)
		die("%s: %s", name, error);
}

/* A producer or a consumer. */
rd_kafka_t *
make_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf)
{
	char		error[256];
	rd_kafka_t *handle = rd_kafka_new(type, conf, error, sizeof(error));

	if (handle == NULL)
		die("%s", error);
	return handle;
}

PGconn *
connect_database(const char *conninfo)
{
	PGconn	   *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	return conn;
}

/* Prepares a statement. */
void
prepare(PGconn *conn, const char *name, const char *sql)
{
	PGresult   *result = PQprepare(conn, name, sql, 0, NULL);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	PQclear(result);
}

/* Runs a prepared statement. */
PGresult *
execute(PGconn *conn, const char *name, int nvalues, const char *const *values)
{
	PGresult   *result = PQexecPrepared(conn, name, nvalues, values, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	return result;
}
