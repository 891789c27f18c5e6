/*-------------------------------------------------------------------------
 *
 * client.h
 *		What the programs of the benchmarks share: their ends of Kafka and the
 *		database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <libpq-fe.h>
#include <librdkafka/rdkafka.h>

extern void die(const char *format,...) __attribute__((format(printf, 1, 2), noreturn));

extern rd_kafka_conf_t *make_conf(const char *brokers);
extern void set(rd_kafka_conf_t *conf, const char *name, const char *value);
extern rd_kafka_t *make_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf);

extern PGconn *connect_database(const char *conninfo);
extern void prepare(PGconn *conn, const char *name, const char *sql);
extern PGresult *execute(PGconn *conn, const char *name, int nvalues, const char *const *values);

#endif							/* BENCH_CLIENT_H */
