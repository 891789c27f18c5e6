/*-------------------------------------------------------------------------
 *
 * relay_rules.h
 *		The rules of the relay: what to read, hand to Kafka, hold, park, mark,
 *		rebuild and wait for.
 *
 * Pure: nothing of the server or of librdkafka, no clock, no memory of its own
 * but the struct.  Rows, reports, errors and times go in; what to do comes out.
 *
 * Truth is the state of the rows.  A position per leaf only says from where on
 * there may be unpublished ones: it moves forward with reading, and back when a
 * transaction commits a lower seq.  A row that can't go now is left behind by
 * whatever stops it (its key, its partition, its topic, or a producer that is
 * being made anew): that remembers the lowest seq and the leaves, and when it no
 * longer stops anything, those leaves are read again from there.
 *
 * There are two producers.  The stream carries the rows; whatever it is refused
 * for good ends it, so that no later row of a key can pass.  The probe carries
 * rows that go alone: those that may be at fault, and the first of a topic that
 * was refused as a whole.
 *
 * Times are microseconds of any clock that does not go back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_RULES_H
#define RELAY_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "relay_errors.h"

#define RELAY_LEAVES		64

/*
 * Rows handed to Kafka and not yet marked, at most: also the most repeats.  The
 * defaults, and the highest that can be set.
 */
#define RELAY_WINDOW_ROWS	2500
#define RELAY_WINDOW_BYTES	(16 * 1024 * 1024)
#define RELAY_MAX_WINDOW	10000

/* rows that wait in memory for another one of their key: all, and of one key */
#define RELAY_WAITING_ROWS	2500
#define RELAY_WAITING_OF_KEY	250
#define RELAY_ENTRIES		(RELAY_MAX_WINDOW + RELAY_WAITING_ROWS)

/* what a row costs in the client library beside its key, value and headers */
#define RELAY_ROW_OVERHEAD	512

/* rows of one read */
#define RELAY_READ_ROWS		500

/* marks are written when so many are due, nothing is in flight, or after a while */
#define RELAY_MARK_ROWS		500
#define RELAY_MARK_USEC		5000

/* how often a row may be refused before it is parked */
#define RELAY_ATTEMPTS		5

/* the size of a batch that the stream is made with, unless a topic takes less */
#define RELAY_BATCH_BYTES	1000000
#define RELAY_BATCH_MIN		1000

#define RELAY_BUCKETS		16384
#define RELAY_KEYS			32768
#define RELAY_TOPICS		1024
#define RELAY_PARTITIONS	16384

#define RELAY_SEQ_MIN		INT64_MIN
#define RELAY_SEQ_MAX		INT64_MAX
#define RELAY_NEVER			INT64_MAX
#define RELAY_NONE			(-1)

/* the partition is not known */
#define RELAY_ANY_PARTITION	(-1)

/* a row as the rules know it: where it is, and that it is the same row */
typedef struct RelayRow
{
	int64_t		seq;
	int			leaf;
	uint32_t	block;			/* the row's place in the leaf */
	uint16_t	offset;
	uint32_t	bytes;			/* of the Kafka record, with RELAY_ROW_OVERHEAD */
	uint8_t		event_id[16];
	int			topic;			/* number that the caller gave the topic */
	uint64_t	key;			/* hash of topic and key; 0: the row has no key */
	int32_t		partition;		/* by the count last seen, or RELAY_ANY_PARTITION */
	int32_t		attempts;		/* how often it was refused alone */
} RelayRow;

/* rows that can't go now: where to read again when they can */
typedef struct RelayBehind
{
	bool		any;
	int64_t		seq;			/* lowest */
	int			leaf;			/* of that one */
	uint64_t	leaves;			/* bit n: some are in leaf n */
} RelayBehind;

/* a list of entries, which are in one list each at most */
typedef struct RelayList
{
	int			first;
	int			last;
} RelayList;

/* a row on its way */
typedef enum RelayEntryState
{
	RELAY_FREE,
	RELAY_WAITING,				/* for another row of its key; the caller keeps its record */
	RELAY_IN_FLIGHT,
	RELAY_ACKNOWLEDGED,			/* to be marked */
	RELAY_REFUSED				/* its refusal is to be noted in the table */
} RelayEntryState;

typedef enum RelayHandle
{
	RELAY_STREAM,
	RELAY_PROBE
} RelayHandle;

typedef struct RelayEntry
{
	RelayRow	row;
	RelayEntryState state;
	RelayHandle handle;
	uint32_t	number;			/* of the ticket: a late report must not hit another row */
	int			next_in_bucket; /* or in the list of free entries */
	int			next;			/* in the list of its state */
	int			previous;
	int			place;			/* its partition's */
	int			key;			/* its key's, when it was sent */
	bool		park;			/* refused: for the last time */
	bool		aside;			/* acknowledged: can't be marked, and is tried again later */
	int64_t		since;			/* in this state */
	int32_t		partition;		/* of the report */
	int64_t		kafka_offset;
} RelayEntry;

/* what stops the later rows of a key */
typedef enum RelayKeyState
{
	RELAY_KEY_OPEN,
	RELAY_KEY_TRYING,			/* a row of it was refused, and is tried alone */
	RELAY_KEY_HELD				/* a row of it is parked */
} RelayKeyState;

typedef struct RelayKey
{
	uint64_t	hash;			/* 0: free */
	bool		own;			/* of one row, which has no key */
	RelayKeyState state;
	int			next_in_bucket; /* or in the list of free keys */
	int			topic;
	int			in_flight;
	RelayBehind behind;
	RelayList	waiting;		/* by seq */
	int			nwaiting;

	/* the row that stops the others */
	int64_t		seq;
	int			leaf;
	uint8_t		event_id[16];
	int32_t		attempts;
	int64_t		try_at;			/* alone, from then on; RELAY_NEVER: it is being tried */
	int			next_trying;	/* list of the keys that are */
	int			previous_trying;
	bool		seen;			/* by the reading of parked rows */
	bool		was_held;		/* trying: other rows of it may be parked */
	bool		queued;			/* in the ring of keys whose next row may go */

	/* to see whether the order was kept: the highest row that was stored, */
	bool		stored;
	int64_t		high_seq;
	int64_t		high_offset;
	int32_t		high_partition;
	uint32_t	high_number;	/* of its ticket */
	uint32_t	high_from;		/* generation of the stream */

	/* and the lowest that the stream was refused */
	bool		refused;
	int64_t		low_seq;
	uint32_t	low_number;
	uint32_t	low_from;
} RelayKey;

typedef enum RelayTopicState
{
	RELAY_TOPIC_OPEN,
	RELAY_TOPIC_STOPPED,		/* until probe_at */
	RELAY_TOPIC_PROBING,		/* its next row goes alone, or is on its way */
	RELAY_TOPIC_ASKING,			/* how large its records may be */
	RELAY_TOPIC_CROWDED			/* too many keys are held: no room to remember more */
} RelayTopicState;

typedef struct RelayTopic
{
	/* as the operator set it */
	bool		skip;			/* a parked row does not hold its key */
	int			max_in_flight_per_key;	/* 0: no limit */

	RelayTopicState state;
	RelayClass	reason;			/* why it is stopped */
	RelayBehind behind;
	int			in_flight;
	int64_t		bytes;			/* in flight */
	bool		probe_sent;
	int64_t		probe_at;
	int64_t		backoff;

	int32_t		partitions;		/* count last seen; 0: not known */
	uint32_t	begun;			/* generation of the stream that stored a row of it */
	int32_t		spread;			/* where rows without a key go now */
	int			spread_left;

	uint32_t	limit;			/* largest record that it takes; 0: not known */
	bool		asked;			/* the answer is not here yet */
} RelayTopic;

typedef struct RelayPartition
{
	int			topic;
	int32_t		number;
	int			next_in_bucket;
	bool		used;
	bool		listed;			/* among those with rows left behind */
	int			in_flight;
	int64_t		bytes;			/* in flight */
	RelayList	flight;			/* in the order of sending */
	uint32_t	confirmed;		/* generation of the stream that stored a row here */
	int64_t		stored_at;
	RelayBehind behind;
} RelayPartition;

/* what is known of a leaf */
typedef enum RelayLeafState
{
	RELAY_LEAF_UNREAD,			/* not known: maybe unpublished rows from position on */
	RELAY_LEAF_CLEAN,			/* nothing unpublished but what is on its way or left behind */
	RELAY_LEAF_DIRTY			/* unpublished rows from position on, the first there */
} RelayLeafState;

typedef struct RelayLeaf
{
	RelayLeafState state;
	int64_t		position;
	bool		lowered;		/* during the read under way, to: */
	int64_t		lowered_to;

	/* rows that a committing transaction may have put below the position */
	RelayLeafState late;		/* in this unit of work; CLEAN: none */
	int64_t		late_from;

	RelayList	acknowledged;	/* rows that wait for their mark */
	int			nacknowledged;
	int			chunk;			/* marks of one transaction, at most */
} RelayLeaf;

/* what the stream had to send lately */
typedef struct RelayLoad
{
	int64_t		since;			/* the last look at it; from then on: */
	int64_t		sent;			/* rows, */
	int64_t		crowded;		/* and those that found others on their way to their partition */
	bool		waited;			/* rows waited for others of their key or partition */
	int64_t		calm_at;		/* when the last load will be over */
} RelayLoad;

typedef enum RelayStreamState
{
	RELAY_STREAM_OPEN,
	RELAY_STREAM_DRAINING,		/* takes no more; waits for reports */
	RELAY_STREAM_PURGING,		/* its rows come back */
	RELAY_STREAM_CLOSED			/* to be made anew at rebuild_at */
} RelayStreamState;

/* the relay's figures, for the view */
typedef struct RelayCounts
{
	int			held_keys;
	int			trying_keys;
	int			stopped_topics;
	int64_t		parked;
	int64_t		rebuilds;
	int64_t		order_violations;
} RelayCounts;

typedef struct RelayRules
{
	/* large tables, of which only the used part is ever looked at */
	RelayEntry	entry[RELAY_ENTRIES];
	RelayKey	key[RELAY_KEYS];
	RelayTopic	topic[RELAY_TOPICS];
	RelayPartition partition[RELAY_PARTITIONS];
	int			bucket[RELAY_BUCKETS];
	int			key_bucket[RELAY_BUCKETS];
	int			partition_bucket[RELAY_BUCKETS];
	int			slow[RELAY_PARTITIONS]; /* partitions with rows left behind */
	int			ready[RELAY_KEYS];	/* ring of keys whose next row may go */

	/* settings: from here on, all is cleared at the start */
	int			window_rows;
	int64_t		window_bytes;
	int64_t		stuck_after;	/* how long rows in flight may stand */
	int			max_keys;		/* as many as are remembered */

	RelayLeaf	leaf[RELAY_LEAVES];
	int			free;			/* first free entry; beyond used_entries none was ever used */
	int			used_entries;
	int			free_key;
	int			used_keys;
	int			nkeys;
	int			used_partitions;
	int			ntopics;		/* highest number of a topic, and one */

	uint32_t	number;			/* of the last ticket */
	int			in_flight;
	int			waiting;
	int			acknowledged;
	int			refused;
	int64_t		bytes;			/* of all entries */

	/* reading */
	int64_t		read_not_before;
	bool		read_failed;	/* the last read did */
	bool		holds_wanted;	/* the parked rows are to be read first */
	bool		any_late;		/* in this unit of work */
	bool		lowered;		/* some leaf, since the unit of work began, to: */
	int64_t		lowered_to;
	RelayBehind returned;		/* by a producer that is being made anew */
	int			trying;			/* first key that is */
	bool		met;			/* the row of the last read that goes alone was there, */
	bool		sent;			/* and was sent */
	int			nslow;
	int64_t		released_at;	/* rows left behind with partitions, last */
	int64_t		read_in_vain;	/* rows since then that could not go, or were on their way */
	int64_t		release_at;		/* when some may go again; RELAY_NEVER: none can */
	int			awaited_place;	/* partition for which reading stopped, or RELAY_NONE */
	int			beginning;		/* topic for whose first row reading stopped last, */
	int64_t		beginning_at;	/* and when */
	int64_t		no_waiting_until;	/* reading does not stop for first rows */
	int			standing;		/* partitions whose rows are not acknowledged, */
	int			unproved_rows;	/* and what those have in flight that may stand, as of: */
	int64_t		unproved_bytes;
	int64_t		count_at;
	int			first_ready;
	int			nready;

	/* the stream */
	RelayStreamState stream;
	uint32_t	generation;		/* of the stream */
	int			stream_in_flight;
	bool		purge;			/* the library is to give the rows back */
	int64_t		purge_again;	/* also those that are on the wire, then */
	int64_t		give_up_at;		/* reports that did not come by then never will */
	int64_t		rebuild_at;
	int64_t		rebuild_backoff;
	bool		got_on;			/* the stream stored a row, or found one not to be sent again */
	uint32_t	batch_bytes;	/* that the stream was made with */
	uint32_t	next_batch_bytes;
	bool		lingers;		/* it gathers rows, rather than send each at once */
	RelayLoad	load;
	int64_t		stored_at;		/* any row, by the stream */
	int64_t		usual_way;		/* time from sending to that, of the last few hundred on the average */
	int			stored_place;	/* in which partition */
	int64_t		stuck_wait;		/* doubles with each rebuild for a partition that stands: */
	int			stuck_place;
	int64_t		look_at;		/* for partitions that stand, and rows left behind */
	bool		probe_broken;

	/* marks */
	RelayList	unnoted;		/* refused rows */
	int64_t		acknowledged_since; /* oldest acknowledgement not marked */
	int64_t		mark_not_before;
	int64_t		note_not_before;
	bool		mark_failed;	/* the last mark did */
	int			aside;			/* rows set aside, until: */
	int64_t		aside_until;

	RelayCounts counts;
} RelayRules;

/* a read to do: rows of a leaf with from <= seq <= upto, in order of seq */
typedef struct RelayRead
{
	int			leaf;
	int64_t		from;
	int64_t		upto;
	int			limit;
	bool		peek;			/* only find the first */
	bool		late;			/* below the leaf's position */
	bool		alone;			/* one row, to be sent alone */
	int			topic;			/* alone: that is probed, or RELAY_NONE */
	int			key;			/* alone: whose row it is, or RELAY_NONE */
} RelayRead;

/* what to do with a row that was read */
typedef enum RelayVerdict
{
	RELAY_PRODUCE,				/* hand it to the stream */
	RELAY_ALONE,				/* hand it to the probe */
	RELAY_WAIT,					/* keep its record until relay_rules_next_waiting names it */
	RELAY_SKIP,					/* it is on its way, or left behind */
	RELAY_FULL					/* stop reading */
} RelayVerdict;

/* a refusal to be written into the table */
typedef struct RelayRefusal
{
	RelayRow	row;
	uint64_t	ticket;
	int32_t		attempts;
	bool		park;
} RelayRefusal;

/* what to do with the stream */
typedef enum RelayStreamAction
{
	RELAY_STREAM_LEAVE,
	RELAY_STREAM_PURGE_QUEUE,	/* have the library give back what it did not send */
	RELAY_STREAM_PURGE_ALL,		/* and what it did */
	RELAY_STREAM_REBUILD
} RelayStreamAction;

/* relay_rules.c, relay_reading.c: rows and where they are read */
extern void relay_rules_init(RelayRules *rules);
extern void relay_rules_forget(RelayRules *rules);
extern void relay_rules_sweep(RelayRules *rules);
extern void relay_rules_nothing(RelayRules *rules);
extern void relay_rules_hint(RelayRules *rules, int leaf, int64_t seq);
extern void relay_rules_begin(RelayRules *rules);
extern void relay_rules_end(RelayRules *rules);
extern void relay_rules_committing(RelayRules *rules, int leaf, int64_t seq);
extern bool relay_rules_wants_read(const RelayRules *rules, int64_t now);
extern bool relay_rules_next_read(RelayRules *rules, RelayRead *read);
extern RelayVerdict relay_rules_look(RelayRules *rules, const RelayRead *read, RelayRow *row,
									 int64_t now);
extern RelayVerdict relay_rules_row(RelayRules *rules, const RelayRead *read, const RelayRow *row,
									int64_t now, uint64_t *ticket);
extern uint64_t relay_rules_broken(RelayRules *rules, const RelayRead *read, const RelayRow *row,
								   int64_t now);
extern bool relay_rules_next_waiting(RelayRules *rules, uint64_t *ticket, int64_t now);
extern void relay_rules_not_taken(RelayRules *rules, uint64_t ticket, int64_t now);
extern void relay_rules_peeked(RelayRules *rules, const RelayRead *read, bool found, int64_t seq);
extern void relay_rules_read_done(RelayRules *rules, const RelayRead *read, bool complete, int64_t next);
extern void relay_rules_read_failed(RelayRules *rules, int64_t now);
extern int64_t relay_rules_wake_at(const RelayRules *rules, int64_t now);
extern bool relay_rules_retrying(const RelayRules *rules);

/* relay_alone.c, relay_keys.c: rows that go alone, keys that are held */
extern bool relay_rules_next_alone(RelayRules *rules, RelayRead *read, int64_t now);
extern void relay_rules_alone_done(RelayRules *rules, const RelayRead *read);
extern bool relay_rules_nth_refusal(const RelayRules *rules, int n, RelayRefusal *refusal, int64_t now);
extern void relay_rules_noted(RelayRules *rules, const RelayRefusal *refusal, bool found, int64_t now);
extern void relay_rules_note_failed(RelayRules *rules, int64_t now);
extern void relay_rules_holds_begin(RelayRules *rules);
extern void relay_rules_hold(RelayRules *rules, const RelayRow *row);
extern void relay_rules_holds_end(RelayRules *rules);

/* relay_reports.c: what became of rows */
extern void relay_rules_persisted(RelayRules *rules, uint64_t ticket, int32_t partition,
								  int64_t kafka_offset, int64_t now);
extern void relay_rules_failed(RelayRules *rules, uint64_t ticket, RelayClass class, int64_t now);
extern void relay_rules_refused(RelayRules *rules, uint64_t ticket, RelayClass class, int64_t now);

/* relay_partitions.c, relay_stopped.c: topics and their partitions */
extern void relay_rules_topic_set(RelayRules *rules, int topic, bool skip, int max_in_flight_per_key);
extern void relay_rules_partitions(RelayRules *rules, int topic, int32_t count);
extern int	relay_rules_ask_limit(RelayRules *rules);
extern void relay_rules_limit(RelayRules *rules, int topic, uint32_t limit, int64_t now);

/* relay_stream.c: the life of the producers */
extern void relay_rules_stream_failed(RelayRules *rules, int64_t now);
extern void relay_rules_probe_failed(RelayRules *rules, int64_t now);
extern void relay_rules_tick(RelayRules *rules, int64_t now);
extern RelayStreamAction relay_rules_stream_action(RelayRules *rules, int64_t now);
extern void relay_rules_stream_built(RelayRules *rules, int64_t now);
extern void relay_rules_probe_built(RelayRules *rules, int64_t now);

/* relay_marks.c */
extern bool relay_rules_mark_due(const RelayRules *rules, int64_t now);
extern int	relay_rules_to_mark(RelayRules *rules, int leaf, const RelayEntry **entries, int64_t now);
extern void relay_rules_marked(RelayRules *rules, int leaf, const RelayEntry **entries, int n);
extern void relay_rules_mark_failed(RelayRules *rules, int leaf, const RelayEntry **entries, int n,
									bool rows_at_fault, int64_t now);

#endif							/* RELAY_RULES_H */
