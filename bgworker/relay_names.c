/*-------------------------------------------------------------------------
 *
 * relay_names.c
 *		The numbers by which the relay's rules know topics and keys.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "relay_names.h"
#include "relay_topics.h"

/* Kafka's limit, and a zero byte */
#define TOPIC_SIZE	250

typedef struct NameEntry
{
	char		topic[TOPIC_SIZE];	/* hash key */
	int			number;
} NameEntry;

static HTAB *names = NULL;
static const char *topic_of[RELAY_TOPICS];	/* points into the entries */
static int	ntopics = 0;
static int	nset = 0;			/* topics whose settings the rules have */

/*
 * The number of a topic.  The last one is shared by all topics for which there is
 * none left: they then stop and go together.
 */
int
relay_names_number(const char *topic)
{
	static NameEntry *last = NULL;	/* mostly it is the same again */
	NameEntry  *entry;
	bool		found;

	if (last != NULL && strcmp(last->topic, topic) == 0)
		return last->number;
	if (names == NULL)
	{
		HASHCTL		ctl;

		memset(&ctl, 0, sizeof(ctl));
		ctl.keysize = TOPIC_SIZE;
		ctl.entrysize = sizeof(NameEntry);
		ctl.hcxt = TopMemoryContext;
		names = hash_create("idem relay topic numbers", 64, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	}
	entry = hash_search(names, topic, ntopics < RELAY_TOPICS ? HASH_ENTER : HASH_FIND, &found);
	if (entry == NULL)
		return RELAY_TOPICS - 1;
	if (!found)
	{
		entry->number = ntopics;
		topic_of[ntopics++] = entry->topic;
	}
	last = entry;
	return entry->number;
}

/* The topic of a number. */
const char *
relay_names_topic(int number)
{
	return topic_of[number];
}

/*
 * A number for topic and key of a row: 64 bits of a hash.  Two keys with one
 * number would wait for each other, and nothing else.  0: the row has no key.
 */
uint64
relay_names_key(const char *topic, Datum value, bool isnull)
{
	struct varlena *key;
	uint64		hash;

	if (isnull)
		return 0;
	key = PG_DETOAST_DATUM_PACKED(value);
	hash = DatumGetUInt64(hash_any_extended((const unsigned char *) topic, strlen(topic), 0));
	hash = DatumGetUInt64(hash_any_extended((const unsigned char *) VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), hash));
	return hash != 0 ? hash : 1;
}

/* Tells the rules what the operator set for topics, where they don't know. */
void
relay_names_settings(RelayRules *rules)
{
	static uint32 version = 0;

	if (version != relay_topics_version())
		nset = 0;
	version = relay_topics_version();
	for (; nset < ntopics; nset++)
	{
		const RelayTopicSettings *settings = relay_topics_get(topic_of[nset]);

		relay_rules_topic_set(rules, nset, settings->skip, settings->max_in_flight_per_key);
	}
}
