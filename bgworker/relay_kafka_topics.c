/*-------------------------------------------------------------------------
 *
 * relay_kafka_topics.c
 *		Topics, as the library knows them: handles, partitions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "relay_kafka_private.h"

/* Kafka's limit, and a zero byte */
#define TOPIC_SIZE	250

/*
 * How many partitions a topic has, as the library's thread last saw.  Not
 * palloc'd: it has to outlive the topic's handle.
 */
struct PartitionCount
{
	volatile int32_t count;		/* 0: not seen yet; one word, written by one thread at a time */
	struct PartitionCount *next;
};

/*
 * A topic's handle; through a handle the first record isn't a second late.  So
 * many are kept, those used last: a handle takes memory for each partition, and a
 * topic that nobody writes to any more is to be forgotten.  Few in test builds, so
 * that tests have more topics than handles.
 */
#ifdef IDEM_TEST
#define HANDLES_MAX		3
#else
#define HANDLES_MAX		1000
#endif

struct TopicEntry
{
	char		topic[TOPIC_SIZE];	/* hash key */
	rd_kafka_topic_t *handle;	/* NULL: given back */
	PartitionCount *partitions;
	uint64		used;			/* when, by counting uses */
};

/* Of a producer that was just made: it knows no topic. */
void
relay_kafka_topics_begin(RelayKafka *kafka)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = TOPIC_SIZE;
	ctl.entrysize = sizeof(TopicEntry);
	ctl.hcxt = TopMemoryContext;
	kafka->topics = hash_create("idem relay topics", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* Gives all handles back.  The counts may still be written, until the producer is gone. */
void
relay_kafka_topics_end(RelayKafka *kafka)
{
	HASH_SEQ_STATUS status;
	TopicEntry *entry;

	hash_seq_init(&status, kafka->topics);
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->handle != NULL)
			rd_kafka_topic_destroy(entry->handle);
	hash_destroy(kafka->topics);
}

/* Of a producer that is gone; in a thread that knows nothing of the server. */
void
relay_kafka_counts_free(PartitionCount *counts)
{
	while (counts != NULL)
	{
		PartitionCount *next = counts->next;

		free(counts);
		counts = next;
	}
}

/*
 * The partition of a record, as Java clients have it; and what the library knows
 * of the topic.  May run in a thread of the library's.
 */
static int32_t
choose_partition(const rd_kafka_topic_t *rkt, const void *key, size_t key_len,
				 int32_t partition_cnt, void *rkt_opaque, void *msg_opaque)
{
	((PartitionCount *) rkt_opaque)->count = partition_cnt;
	return rd_kafka_msg_partitioner_murmur2_random(rkt, key, key_len, partition_cnt, rkt_opaque, msg_opaque);
}

/*
 * Gives back the handle that was used longest ago.  Records in flight keep what
 * they need of it.
 */
static void
give_handle_back(RelayKafka *kafka)
{
	HASH_SEQ_STATUS status;
	TopicEntry *entry;
	TopicEntry *oldest = NULL;

	hash_seq_init(&status, kafka->topics);
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->handle != NULL && (oldest == NULL || entry->used < oldest->used))
			oldest = entry;
	rd_kafka_topic_destroy(oldest->handle);
	oldest->handle = NULL;
	kafka->nhandles--;
}

static void
open_handle(RelayKafka *kafka, TopicEntry *entry)
{
	rd_kafka_topic_conf_t *conf = rd_kafka_topic_conf_new();

	rd_kafka_topic_conf_set_partitioner_cb(conf, choose_partition);
	rd_kafka_topic_conf_set_opaque(conf, entry->partitions);
	entry->handle = rd_kafka_topic_new(kafka->rk, entry->topic, conf);
	if (entry->handle == NULL)
		rd_kafka_topic_conf_destroy(conf);
	else
		kafka->nhandles++;
}

/* What is known of a topic, or NULL. */
static TopicEntry *
known_topic(RelayKafka *kafka, const char *topic)
{
	TopicEntry *entry = kafka->last_topic;

	if (entry == NULL || strcmp(entry->topic, topic) != 0)
		entry = hash_search(kafka->topics, topic, HASH_FIND, NULL);
	if (entry != NULL)
		kafka->last_topic = entry;
	return entry;
}

/* The handle of a topic; NULL: the library has none for it. */
rd_kafka_topic_t *
relay_kafka_topic(RelayKafka *kafka, const char *topic)
{
	TopicEntry *entry = known_topic(kafka, topic);

	if (entry == NULL)
	{
		entry = hash_search(kafka->topics, topic, HASH_ENTER, NULL);
		entry->handle = NULL;
		entry->partitions = calloc(1, sizeof(PartitionCount));
		if (entry->partitions == NULL)
		{
			hash_search(kafka->topics, topic, HASH_REMOVE, NULL);
			return NULL;
		}
		/* a handle made anew may be the old one, which has this */
		entry->partitions->next = kafka->counts;
		kafka->counts = entry->partitions;
	}
	if (entry->handle == NULL)
	{
		if (kafka->nhandles >= HANDLES_MAX)
			give_handle_back(kafka);
		open_handle(kafka, entry);
	}
	entry->used = ++kafka->uses;
	return entry->handle;
}

/* How many partitions a topic has, as last seen; 0: not known. */
int32_t
relay_kafka_partitions(RelayKafka *kafka, const char *topic)
{
	TopicEntry *entry = known_topic(kafka, topic);

	return entry ? entry->partitions->count : 0;
}

/* The partition that a key goes to. */
int32_t
relay_kafka_partition(RelayBytes key, int32_t partitions)
{
	return rd_kafka_msg_partitioner_murmur2(NULL, key.data, (size_t) key.len, partitions, NULL, NULL);
}
