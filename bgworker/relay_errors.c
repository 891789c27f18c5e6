/*-------------------------------------------------------------------------
 *
 * relay_errors.c
 *		Which of Kafka's errors is what to the relay.
 *
 * An error that isn't here is taken for a transient one: its topic waits and is
 * tried again, visibly, and no event is parked for a reason that nobody knows.
 * So only what is here as the row's fault can ever park a row.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_errors.h"

#include <string.h>

const RelayError relay_errors[] = {
	/* brokers, leaders and replicas that are away for a while */
	{"_TRANSPORT", RELAY_TRANSIENT},
	{"_RESOLVE", RELAY_TRANSIENT},
	{"_ALL_BROKERS_DOWN", RELAY_TRANSIENT},
	{"_TIMED_OUT", RELAY_TRANSIENT},
	{"_TIMED_OUT_QUEUE", RELAY_TRANSIENT},
	{"_MSG_TIMED_OUT", RELAY_TRANSIENT},
	{"_QUEUE_FULL", RELAY_TRANSIENT},
	{"_ISR_INSUFF", RELAY_TRANSIENT},
	{"_WAIT_COORD", RELAY_TRANSIENT},
	{"_WAIT_CACHE", RELAY_TRANSIENT},
	{"_RETRY", RELAY_TRANSIENT},
	{"_STATE", RELAY_TRANSIENT},
	{"_SSL", RELAY_TRANSIENT},
	{"_AUTHENTICATION", RELAY_TRANSIENT},
	{"SASL_AUTHENTICATION_FAILED", RELAY_TRANSIENT},
	{"LEADER_NOT_AVAILABLE", RELAY_TRANSIENT},
	{"NOT_LEADER_FOR_PARTITION", RELAY_TRANSIENT},
	{"FENCED_LEADER_EPOCH", RELAY_TRANSIENT},
	{"UNKNOWN_LEADER_EPOCH", RELAY_TRANSIENT},
	{"REQUEST_TIMED_OUT", RELAY_TRANSIENT},
	{"BROKER_NOT_AVAILABLE", RELAY_TRANSIENT},
	{"REPLICA_NOT_AVAILABLE", RELAY_TRANSIENT},
	{"NETWORK_EXCEPTION", RELAY_TRANSIENT},
	{"NOT_ENOUGH_REPLICAS", RELAY_TRANSIENT},
	{"NOT_ENOUGH_REPLICAS_AFTER_APPEND", RELAY_TRANSIENT},
	{"COORDINATOR_LOAD_IN_PROGRESS", RELAY_TRANSIENT},
	{"COORDINATOR_NOT_AVAILABLE", RELAY_TRANSIENT},
	{"NOT_COORDINATOR", RELAY_TRANSIENT},
	{"CONCURRENT_TRANSACTIONS", RELAY_TRANSIENT},
	{"KAFKA_STORAGE_ERROR", RELAY_TRANSIENT},
	{"LOG_DIR_NOT_FOUND", RELAY_TRANSIENT},
	{"REASSIGNMENT_IN_PROGRESS", RELAY_TRANSIENT},
	{"THROTTLING_QUOTA_EXCEEDED", RELAY_TRANSIENT},
	{"UNKNOWN", RELAY_TRANSIENT},

	/* the producer lost its place in the broker's memory: it is made anew */
	{"OUT_OF_ORDER_SEQUENCE_NUMBER", RELAY_TRANSIENT},
	{"INVALID_PRODUCER_EPOCH", RELAY_TRANSIENT},
	{"INVALID_PRODUCER_ID_MAPPING", RELAY_TRANSIENT},
	{"UNKNOWN_PRODUCER_ID", RELAY_TRANSIENT},
	{"PRODUCER_FENCED", RELAY_TRANSIENT},
	{"_FENCED", RELAY_TRANSIENT},

	/* the topic, or our right to it */
	{"_UNKNOWN_TOPIC", RELAY_TARGET},
	{"_UNKNOWN_PARTITION", RELAY_TARGET},
	{"UNKNOWN_TOPIC_OR_PART", RELAY_TARGET},
	{"TOPIC_EXCEPTION", RELAY_TARGET},
	{"TOPIC_AUTHORIZATION_FAILED", RELAY_TARGET},
	{"CLUSTER_AUTHORIZATION_FAILED", RELAY_TARGET},
	{"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", RELAY_TARGET},
	{"SECURITY_DISABLED", RELAY_TARGET},
	{"POLICY_VIOLATION", RELAY_TARGET},
	{"INVALID_REQUIRED_ACKS", RELAY_TARGET},
	{"UNSUPPORTED_VERSION", RELAY_TARGET},
	{"UNSUPPORTED_FOR_MESSAGE_FORMAT", RELAY_TARGET},
	{"UNSUPPORTED_COMPRESSION_TYPE", RELAY_TARGET},

	/* a batch that is too large says nothing of its rows */
	{"MSG_SIZE_TOO_LARGE", RELAY_SIZE},
	{"RECORD_LIST_TOO_LARGE", RELAY_SIZE},
	{"INVALID_MSG_SIZE", RELAY_SIZE},

	/* the row */
	{"INVALID_RECORD", RELAY_ROW},
	{"INVALID_MSG", RELAY_ROW},
	{"INVALID_TIMESTAMP", RELAY_ROW},
	{"_BAD_MSG", RELAY_ROW},
	{"_INVALID_ARG", RELAY_ROW},

	/* rows that are taken out of a producer which is of no more use */
	{"_PURGE_QUEUE", RELAY_RETURNED},
	{"_PURGE_INFLIGHT", RELAY_RETURNED},
	{"_FATAL", RELAY_RETURNED},
	{"_GAPLESS_GUARANTEE", RELAY_RETURNED},
	{"_INCONSISTENT", RELAY_RETURNED},
	{"_DESTROY", RELAY_RETURNED}
};

const int	relay_nerrors = sizeof(relay_errors) / sizeof(relay_errors[0]);

/* The class of an error, by the name that the library gives it. */
RelayClass
relay_error_class(const char *name)
{
	for (int i = 0; i < relay_nerrors; i++)
		if (strcmp(relay_errors[i].name, name) == 0)
			return relay_errors[i].class;
	return RELAY_TRANSIENT;
}
