/*-------------------------------------------------------------------------
 *
 * broker.c
 *		A Kafka to play with: librdkafka's mock cluster in a program of its own.
 *
 * It speaks enough of Kafka's protocol for producers, consumers and consumer
 * groups, and it lives in a process of its own, so that it outlives a crash of
 * the database server beside it.  It proves nothing about durability, order
 * or size limits: everything is in memory, and gone with the process.
 *
 * The first line of output is the address for "bootstrap.servers".
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#define MAX_BROKERS		10
#define MAX_PARTITIONS	1000

static volatile sig_atomic_t stop_requested = 0;

static const char usage[] =
"Usage: broker [OPTION]... [TOPIC[:PARTITIONS]]...\n"
"\n"
"A Kafka broker for demonstrations, on 127.0.0.1 and in memory.  Makes the\n"
"topics (1 partition each, unless told otherwise), prints its address and runs\n"
"until SIGTERM, SIGINT or the end of its standard input.\n"
"\n"
"  -b, --brokers N  a cluster of N brokers (default 1)\n"
"  -s, --stay       do not end with the standard input\n"
"  -h, --help       print this and exit\n";

static void
request_stop(int signo)
{
	(void) signo;
	stop_requested = 1;
}

/* A whole number from 1 to max, or the end of the program. */
static int
parse_count(const char *what, const char *text, int max)
{
	char	   *end;
	long		value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || value < 1 || value > max)
	{
		fprintf(stderr, "broker: %s must be a number from 1 to %d, not \"%s\"\n",
				what, max, text);
		exit(2);
	}
	return (int) value;
}

/*
 * Make a topic of a mock cluster from "name" or "name:partitions".
 */
static void
create_topic(rd_kafka_mock_cluster_t *cluster, char *spec)
{
	char	   *colon = strchr(spec, ':');
	int			partitions = 1;
	rd_kafka_resp_err_t err;

	if (colon != NULL)
	{
		*colon = '\0';
		partitions = parse_count("the number of partitions", colon + 1, MAX_PARTITIONS);
	}

	err = rd_kafka_mock_topic_create(cluster, spec, partitions, 1);
	if (err != RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		fprintf(stderr, "broker: could not make topic \"%s\": %s\n",
				spec, rd_kafka_err2str(err));
		exit(1);
	}
}

/*
 * The mock cluster belongs to a client handle, which does nothing else here.
 */
static rd_kafka_t *
create_handle(void)
{
	char		reason[512];
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_t *handle = NULL;

	/* It would note that the handle itself has no broker to connect to. */
	if (rd_kafka_conf_set(conf, "log_level", "4", reason, sizeof(reason)) == RD_KAFKA_CONF_OK)
		handle = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof(reason));
	if (handle == NULL)
	{
		fprintf(stderr, "broker: could not start librdkafka: %s\n", reason);
		exit(1);
	}
	return handle;
}

/*
 * Return when a signal asks for it or, unless stay, the standard input ends.
 *
 * The signals are blocked outside of ppoll(), so that none is lost between
 * the look at the flag and the wait.
 */
static void
wait_for_end(bool stay, const sigset_t *unblocked)
{
	struct pollfd input = {.fd = stay ? -1 : STDIN_FILENO, .events = POLLIN};
	char		ignored[256];

	while (!stop_requested)
	{
		if (ppoll(&input, 1, NULL, unblocked) <= 0)
			continue;
		if (read(STDIN_FILENO, ignored, sizeof(ignored)) <= 0)
			break;
	}
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"brokers", required_argument, NULL, 'b'},
		{"stay", no_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}
	};
	struct sigaction action = {.sa_handler = request_stop};
	sigset_t	blocked;
	sigset_t	unblocked;
	rd_kafka_t *handle;
	rd_kafka_mock_cluster_t *cluster;
	int			brokers = 1;
	bool		stay = false;
	int			option;

	while ((option = getopt_long(argc, argv, "b:sh", options, NULL)) != -1)
	{
		switch (option)
		{
			case 'b':
				brokers = parse_count("the number of brokers", optarg, MAX_BROKERS);
				break;
			case 's':
				stay = true;
				break;
			case 'h':
				fputs(usage, stdout);
				return 0;
			default:
				fputs(usage, stderr);
				return 2;
		}
	}

	/* Before librdkafka starts its threads, which inherit the mask. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, &unblocked);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);

	handle = create_handle();
	cluster = rd_kafka_mock_cluster_new(handle, brokers);
	if (cluster == NULL)
	{
		fprintf(stderr, "broker: could not start the mock cluster\n");
		return 1;
	}
	for (; optind < argc; optind++)
		create_topic(cluster, argv[optind]);

	printf("%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
	fflush(stdout);

	wait_for_end(stay, &unblocked);

	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(handle);
	return 0;
}
