/*-------------------------------------------------------------------------
 *
 * relay_rules.h
 *		The rules of the relay: what to read, hand to Kafka, mark, and when.
 *
 * Pure: nothing of the server or of librdkafka, no clock, no memory of its own
 * but the struct.  Rows, reports and times go in; what to do comes out.
 *
 * Truth is the state of the rows.  A position per leaf only says from where on
 * there may be unpublished ones: it moves forward with reading, and back when a
 * transaction commits a lower seq or a row is to be tried again.  Rows that are
 * in flight are skipped when they are read again.
 *
 * Times are microseconds of any clock that does not go back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_RULES_H
#define RELAY_RULES_H

#include <stdbool.h>
#include <stdint.h>

#define RELAY_LEAVES		64

/* rows handed to Kafka and not yet marked, at most: also the most repeats */
#define RELAY_WINDOW_ROWS	2500
#define RELAY_WINDOW_BYTES	(16 * 1024 * 1024)

/* what a row costs in the client library beside its key, value and headers */
#define RELAY_ROW_OVERHEAD	512

/* rows of one read */
#define RELAY_READ_ROWS		500

/* marks are written when so many are due, nothing is in flight, or after a while */
#define RELAY_MARK_ROWS		500
#define RELAY_MARK_USEC		20000

#define RELAY_BUCKETS		4096

#define RELAY_SEQ_MIN		INT64_MIN
#define RELAY_SEQ_MAX		INT64_MAX

/* a row as the rules know it: where it is, and that it is the same row */
typedef struct RelayRow
{
	int64_t		seq;
	int			leaf;
	uint32_t	block;			/* the row's place in the leaf */
	uint16_t	offset;
	uint32_t	bytes;			/* of the Kafka record */
	uint8_t		event_id[16];
} RelayRow;

/* a row on its way: free -> in flight -> acknowledged -> free */
typedef enum RelayEntryState
{
	RELAY_FREE,
	RELAY_IN_FLIGHT,
	RELAY_ACKNOWLEDGED
} RelayEntryState;

typedef struct RelayEntry
{
	RelayRow	row;
	RelayEntryState state;
	int			next;			/* in the bucket, or in the list of free entries */
	int32_t		partition;		/* of the report */
	int64_t		kafka_offset;
} RelayEntry;

/* what is known of a leaf */
typedef enum RelayLeafState
{
	RELAY_LEAF_UNREAD,			/* not known: maybe unpublished rows from position on */
	RELAY_LEAF_CLEAN,			/* nothing unpublished but what is in flight */
	RELAY_LEAF_DIRTY			/* unpublished rows from position on, the first there */
} RelayLeafState;

typedef struct RelayLeaf
{
	RelayLeafState state;
	int64_t		position;
	int			acknowledged;	/* rows of it that wait for their mark */
	bool		has_failed;
	int64_t		failed;			/* lowest seq that is to be tried again */
} RelayLeaf;

typedef struct RelayRules
{
	RelayLeaf	leaf[RELAY_LEAVES];
	RelayEntry	entry[RELAY_WINDOW_ROWS];
	int			bucket[RELAY_BUCKETS];
	int			free;			/* first free entry, -1: none */
	uint32_t	generation;		/* of the tickets; reports of older ones are ignored */
	int			in_flight;
	int			acknowledged;
	int64_t		bytes;
	int64_t		acknowledged_since; /* oldest acknowledgement not marked */
	int64_t		mark_not_before;
	int64_t		read_not_before;
	bool		read_failed;	/* the last read did */
	bool		mark_failed;	/* the last mark did */
	bool		rows_failed;	/* some did, and may not have gone through since */
	int64_t		retry_at;		/* failed rows are read again then */
	int64_t		failed_at;		/* last failure of a row */
	int64_t		backoff;
} RelayRules;

/* a read to do: rows of a leaf with from <= seq <= upto, in order of seq */
typedef struct RelayRead
{
	int			leaf;
	int64_t		from;
	int64_t		upto;
	int			limit;
	bool		peek;			/* only find the first */
} RelayRead;

/* what to do with a row that was read */
typedef enum RelayVerdict
{
	RELAY_PRODUCE,				/* hand it to Kafka */
	RELAY_SKIP,					/* it is in flight */
	RELAY_FULL					/* stop reading */
} RelayVerdict;

extern void relay_rules_init(RelayRules *rules);
extern void relay_rules_forget(RelayRules *rules);
extern void relay_rules_sweep(RelayRules *rules);
extern void relay_rules_nothing(RelayRules *rules);
extern void relay_rules_hint(RelayRules *rules, int leaf, int64_t seq);

extern bool relay_rules_wants_read(RelayRules *rules, int64_t now);
extern bool relay_rules_next_read(const RelayRules *rules, RelayRead *read);
extern bool relay_rules_late_read(const RelayRules *rules, int leaf, int64_t seq, RelayRead *read);
extern RelayVerdict relay_rules_row(RelayRules *rules, const RelayRow *row, uint64_t *ticket);
extern void relay_rules_not_taken(RelayRules *rules, uint64_t ticket, int64_t now);
extern void relay_rules_peeked(RelayRules *rules, const RelayRead *read, bool found, int64_t seq);
extern void relay_rules_read_done(RelayRules *rules, const RelayRead *read, bool complete, int64_t next);
extern void relay_rules_read_failed(RelayRules *rules, int64_t now);

extern void relay_rules_persisted(RelayRules *rules, uint64_t ticket, int32_t partition,
								  int64_t kafka_offset, int64_t now);
extern void relay_rules_failed(RelayRules *rules, uint64_t ticket, int64_t now);
extern void relay_rules_row_failed(RelayRules *rules, const RelayRow *row, int64_t now);

extern bool relay_rules_mark_due(const RelayRules *rules, int64_t now);
extern int	relay_rules_to_mark(const RelayRules *rules, int leaf, const RelayEntry **entries);
extern void relay_rules_marked(RelayRules *rules, int leaf);
extern void relay_rules_mark_failed(RelayRules *rules, int64_t now);

extern int64_t relay_rules_wake_at(const RelayRules *rules);
extern bool relay_rules_retrying(RelayRules *rules);

#endif							/* RELAY_RULES_H */
