/*
 * librdkafka's mock broker, which answers with errors on request.  Prints its
 * address, then reads commands, and prints "ok" after each:
 *
 *	push ERROR COUNT	the next COUNT produce requests get this error
 *	clear				the rest of them do not
 *	topic NAME COUNT	makes one more topic, with so many partitions
 *	rtt MILLISECONDS	each answer takes so long
 *
 * Usage: mock TOPIC PARTITIONS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#define PRODUCE		0			/* number of the request in Kafka's protocol */
#define MOST		1000

static rd_kafka_resp_err_t
error_named(const char *name)
{
	const struct rd_kafka_err_desc *errors;
	size_t		n;

	rd_kafka_get_err_descs(&errors, &n);
	for (size_t i = 0; i < n; i++)
		if (errors[i].name != NULL && strcmp(errors[i].name, name) == 0)
			return errors[i].code;
	fprintf(stderr, "there is no error %s\n", name);
	exit(1);
}

static void
push(rd_kafka_mock_cluster_t *cluster, const char *name, int count)
{
	rd_kafka_resp_err_t error = error_named(name);
	rd_kafka_resp_err_t errors[MOST];

	for (int i = 0; i < MOST; i++)
		errors[i] = error;
	rd_kafka_mock_push_request_errors_array(cluster, PRODUCE, count < MOST ? count : MOST, errors);
}

int
main(int argc, char **argv)
{
	char		text[512];
	char		name[100];
	int			count;
	rd_kafka_t *rk;
	rd_kafka_mock_cluster_t *cluster;

	if (argc != 3)
		return 1;
	rk = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), text, sizeof(text));
	cluster = rd_kafka_mock_cluster_new(rk, 1);
	rd_kafka_mock_topic_create(cluster, argv[1], atoi(argv[2]), 1);
	puts(rd_kafka_mock_cluster_bootstraps(cluster));
	fflush(stdout);
	while (fgets(text, sizeof(text), stdin) != NULL)
	{
		if (sscanf(text, "push %99s %d", name, &count) == 2)
			push(cluster, name, count);
		else if (sscanf(text, "topic %99s %d", name, &count) == 2)
			rd_kafka_mock_topic_create(cluster, name, count, 1);
		else if (sscanf(text, "rtt %d", &count) == 1)
			rd_kafka_mock_broker_set_rtt(cluster, 1, count);
		else
			rd_kafka_mock_clear_request_errors(cluster, PRODUCE);
		puts("ok");
		fflush(stdout);
	}
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(rk);
	return 0;
}
