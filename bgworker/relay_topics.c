/*-------------------------------------------------------------------------
 *
 * relay_topics.c
 *		The settings of single topics, as idem.topic has them.
 *
 * The table is read when the relay first needs it and after a change, which the
 * relation cache tells of: a trigger of the table invalidates it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "relay_topics.h"

/* Kafka's limit, and a zero byte */
#define TOPIC_SIZE	250

#define READ_TOPICS \
	"SELECT topic, on_failure = 'skip', timestamp_type = 'send', max_in_flight_per_key" \
	" FROM idem.topic"

typedef struct TopicEntry
{
	char		topic[TOPIC_SIZE];	/* hash key */
	RelayTopicSettings settings;
} TopicEntry;

static const RelayTopicSettings defaults = {false, false, 0};

static HTAB *topics = NULL;		/* NULL: none has settings */
static Oid	table = InvalidOid;
static uint32 changes = 1;		/* invalidations heard of */
static uint32 read_at = 0;		/* changes at the last reading; another: read again */
static uint32 version = 0;

/* A relation was invalidated, or all were. */
static void
hear_table(Datum arg, Oid relation)
{
	(void) arg;
	if (!OidIsValid(relation) || relation == table)
		changes++;
}

static HTAB *
make_topics(void)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = TOPIC_SIZE;
	ctl.entrysize = sizeof(TopicEntry);
	ctl.hcxt = TopMemoryContext;
	return hash_create("idem relay topic settings", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

static Datum
column(uint64 row, int number)
{
	bool		isnull;

	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, &isnull);
}

/* Takes over what was read. */
static void
take_topics(void)
{
	if (topics != NULL)
		hash_destroy(topics);
	topics = NULL;
	if (SPI_processed == 0)
		return;
	topics = make_topics();
	for (uint64 row = 0; row < SPI_processed; row++)
	{
		char	   *topic = TextDatumGetCString(column(row, 1));
		TopicEntry *entry = hash_search(topics, topic, HASH_ENTER, NULL);

		entry->settings.skip = DatumGetBool(column(row, 2));
		entry->settings.send_time = DatumGetBool(column(row, 3));
		entry->settings.max_in_flight_per_key = DatumGetInt32(column(row, 4));
	}
}

/*
 * Reads the settings if they may have changed.  Call it in a unit of work, when
 * the extension is there.
 */
void
relay_topics_refresh(IdemRelay *slot)
{
	static bool registered = false;
	uint32		now = changes;
	int			rc;

	if (read_at == now)
		return;
	if (!registered)
		CacheRegisterRelcacheCallback(hear_table, (Datum) 0);
	registered = true;

	table = get_relname_relid("topic", get_namespace_oid("idem", false));
	if (!OidIsValid(table))
		elog(ERROR, "table \"idem.topic\" does not exist");
	pg_atomic_write_u32(&slot->topic_table, table);

	rc = SPI_execute(READ_TOPICS, true, 0);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "could not read the settings of topics: %s", SPI_result_code_string(rc));
	take_topics();
	read_at = now;				/* an invalidation meanwhile makes it read once more */
	version++;
}

/* Read it again: the extension is another one, and so is its table, or it was changed. */
void
relay_topics_forget(void)
{
	changes++;
}

/* The settings of a topic. */
const RelayTopicSettings *
relay_topics_get(const char *topic)
{
	TopicEntry *entry = topics ? hash_search(topics, topic, HASH_FIND, NULL) : NULL;

	return entry ? &entry->settings : &defaults;
}

/* Grows with each reading of the table. */
uint32
relay_topics_version(void)
{
	return version;
}
