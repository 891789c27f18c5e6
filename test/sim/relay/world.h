/*-------------------------------------------------------------------------
 *
 * world.h
 *		The relay's simulated world: an outbox, brokers, a client library.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_WORLD_H
#define RELAY_WORLD_H

#include "../../../bgworker/relay_rules.h"
#include "faults.h"

#define MSEC			INT64_C(1000)
#define SEC				INT64_C(1000000)

#define MAX_ROWS		400
#define MAX_WRITERS		4
#define MAX_TOPICS		3
#define MAX_PARTITIONS	6
#define MAX_KEYS		6
#define MAX_PREPARED	3
#define LEAVES			3		/* that rows are written to */
#define FIRST_LEAF		62
#define BROKERS			2
#define MAX_REQUESTS	128
#define MAX_QUEUE		160
#define MAX_BATCH		40
#define KNOWN			12		/* producers that a partition remembers */
#define MAX_REPORTS		512

#define INVARIANT_LIST(I) \
	I(no_ghost, "no-ghost") \
	I(marked, "marked-is-stored") \
	I(order, "order") \
	I(one_of_key, "one-of-a-key") \
	I(window, "window") \
	I(repeats, "repeats") \
	I(parked, "parked-alone") \
	I(settled, "parked-or-published") \
	I(all_published, "all-published") \
	I(counted, "violations-counted")

enum
{
	INVARIANT_none = HOLDS,
	INVARIANT_LIST(INVARIANT_ENUM)
};

/* an episode's habits */
typedef struct Config
{
	int			writers;
	int			topics;
	int			partitions[MAX_TOPICS];
	int			keys;
	bool		skip[MAX_TOPICS];
	int			max_per_key[MAX_TOPICS];
	uint32_t	max_bytes[MAX_TOPICS];	/* max.message.bytes */
	bool		grow;			/* topics get more partitions */
	bool		forget;			/* topics are deleted and made anew */
	int			window;
	int			max_keys;
	int			batch;			/* rows that the library puts into a batch, at most */

	/* per mille */
	int			no_key;
	int			poison;
	int			big;
	int			abort;
	int			prepare;
	int			kill;
	int			trouble;		/* of brokers, topics and networks */
	int			operator;
	int			database;		/* errors of statements */
} Config;

/* ---- the outbox ---- */

typedef enum TransactionState
{
	IDLE,
	WRITING,
	ANNOUNCED,					/* about to commit */
	VISIBLE,					/* committed; hints not lowered yet */
	TOLD						/* hints lowered; announcement not taken back yet */
} TransactionState;

typedef struct Writer
{
	TransactionState state;
	int			first_row;		/* rows of the transaction: a list through next_of_transaction */
	bool		announced;
	bool		held_back;		/* slow: rarely moves */
} Writer;

typedef struct Row
{
	int64_t		seq;
	int			leaf;			/* of the rules */
	int			topic;
	int			key;			/* -1: none */
	uint32_t	bytes;
	bool		poison;			/* no broker takes it */
	bool		broken;			/* it can't be made into a record */
	int			next;			/* of its transaction */

	int64_t		visible_at;		/* stamp of the commit; 0: not committed */
	bool		published;
	bool		parked;
	int			attempts;

	/* for the checks */
	int64_t		read_at;		/* stamp of the snapshot that last showed it to the rules */
	int64_t		sent_at;		/* the same, of the message that was stored first */
	int64_t		parked_from;	/* stamp */
	int			stored;			/* times */
	int			partition;		/* of the first time */
	int			incarnation;
	bool		deleted;
	bool		out;			/* handed to the library by this worker, not marked */
	bool		in_library;		/* not reported on */
} Row;

/* ---- Kafka ---- */

typedef struct Partition
{
	int			incarnation;	/* of the topic */
	int			leader;
	int64_t		end;			/* next offset */
	struct
	{
		int			producer;	/* 0: none */
		int			epoch;
		int			next;		/* sequence number expected */
		int			recent[5];	/* sequence numbers that recent batches began with */
		int64_t		offset[5];
		int			nrecent;
	}			known[KNOWN];		/* producers that the broker remembers */
	int			next_known;
} Partition;

typedef struct Topic
{
	bool		exists;
	bool		allowed;
	bool		torn;			/* made anew, so that it knows no producer any more */
	int			incarnation;
	int			partitions;
	uint32_t	max_bytes;
	Partition	partition[MAX_PARTITIONS];
} Topic;

typedef struct Message
{
	uint64_t	ticket;
	int			row;
	int			partition;		/* that was asked for; -1: none */
	int			sequence;		/* begins again with each epoch */
	int			number;			/* never begins again */
	int64_t		batch;			/* that it was sent in: sent again, it is the same one; 0: none */
	int64_t		read_at;		/* stamp of the snapshot that showed the row */
} Message;

typedef enum RequestState
{
	UNUSED,
	ON_ITS_WAY,
	ANSWERED
} RequestState;

typedef enum Answer
{
	STORED,
	TRANSIENT,					/* not stored, the library tries again */
	OUT_OF_ORDER,
	MISSING,
	FORBIDDEN,
	TOO_LARGE,
	INVALID,
	LOST						/* the connection broke */
} Answer;

/* a produce request, on its way there or back */
typedef struct Request
{
	RequestState state;
	int			producer;		/* number of the handle */
	int			epoch;
	int			topic;
	int			partition;
	int			broker;
	int			sequence;
	int			n;
	Message		message[MAX_BATCH];
	bool		forgotten;		/* by the library: its rows were given back */
	Answer		answer;
	int64_t		offset;
	int64_t		order;			/* of sending */
} Request;

typedef struct Report
{
	uint64_t	ticket;
	bool		stored;
	RelayClass	class;
	int32_t		partition;
	int64_t		offset;
	bool		fatal;			/* not a report */
	int			limit_of;		/* answer to a question, or -1 */
	uint32_t	limit;
} Report;

/* messages of a partition that the library has not sent, or sends again */
typedef struct Queue
{
	int			n;
	Message		message[MAX_QUEUE];
	int			sequence;		/* of the next new message */
	int			number;			/* of the last one */
	int			stored;			/* highest number that surely is */
	int			requests;		/* on their way */
	bool		drain;			/* sends nothing until all requests are back */
	int			leader;			/* that it was sent to last */
} Queue;

/* a handle of the client library */
typedef struct Producer
{
	bool		open;
	bool		fatal;
	bool		hangs;			/* it sends no more */
	bool		alone;
	int			number;
	int			epoch;
	bool		bump;			/* the epoch, when all requests are back */
	uint32_t	batch_bytes;
	int			partitions[MAX_TOPICS]; /* as far as it knows; 0: it does not */
	bool		denied[MAX_TOPICS];
	Queue		queue[MAX_TOPICS][MAX_PARTITIONS];
	int			nunknown[MAX_TOPICS];
	Message		unknown[MAX_TOPICS][MAX_QUEUE]; /* of a topic that it does not know */
	int64_t		unknown_since[MAX_TOPICS];
	int			first_report;
	int			nreports;
	Report		report[MAX_REPORTS];
} Producer;

/* ---- the worker ---- */

typedef enum Phase
{
	DEAD,
	HEAR_COMMITS,
	HEAR_KAFKA,
	MIND,
	SEND_WAITING,
	LOOK_ALONE,
	READ_ALONE,
	TAKE_SNAPSHOT,
	READ,
	MARK,
	MARKED,
	NOTE,
	SLEEP
} Phase;

typedef struct Worker
{
	Phase		phase;
	bool		busy;
	int64_t		snapshot;		/* stamp */
	int64_t		starts_at;
	int			leaf;			/* being marked */
	int			nentries;
	const RelayEntry *entries[RELAY_ENTRIES];
	bool		mark_fails;
} Worker;

struct World
{
	RelayRules	rules;			/* first: it clears what it used itself */

	uint64_t	seed;
	Config		config;
	Life		life;
	bool		calm;

	int64_t		now;
	int64_t		stamp;			/* counts commits and snapshots */

	int			nrows;
	Row			row[MAX_ROWS];
	int64_t		next_seq;
	Writer		writer[MAX_WRITERS];
	int			nprepared;
	int			prepared[MAX_PREPARED]; /* first rows */

	/* shared memory */
	bool		hinted[RELAY_LEAVES];
	int64_t		hint[RELAY_LEAVES];
	bool		sweep;
	bool		holds;			/* parked rows have changed */
	bool		latch;

	Topic		topic[MAX_TOPICS];
	bool		broker_up[BROKERS];
	bool		replicas;		/* enough */
	Request		request[MAX_REQUESTS];
	int64_t		requests;
	int			producers;		/* made so far */
	Producer	stream;
	Producer	probe;
	bool		pipe;			/* reports came */

	Worker		worker;

	/* for the checks */
	int64_t		history;		/* records stored */
	int64_t		ends;			/* of workers and producers */
	int64_t		repeats;
	int64_t		resets;
};

/* world.c */
extern void world_move_clock(World *world, Random *random);

/* store.c */
extern void writer_step(World *world, int writer, Random *random);
extern void prepared_step(World *world, Random *random);
extern void operator_step(World *world, Random *random);
extern void server_crash(World *world);
extern int	store_next(const World *world, int leaf, int64_t from, int64_t upto);
extern int64_t store_pending(const World *world, int leaf);
extern bool store_idle(const World *world);

/* kafka.c */
typedef enum Take
{
	TAKEN,
	QUEUE_FULL,
	NOT_SENT
} Take;

extern int	partition_of(int key, int partitions);
extern void library_open(World *world, Producer *producer, bool alone, uint32_t batch_bytes);
extern void library_close(World *world, Producer *producer);
extern Take library_produce(World *world, Producer *producer, int row, int32_t partition,
							uint64_t ticket, RelayClass *class, Random *random);
extern void library_purge(World *world, Producer *producer, bool in_flight_too);
extern bool library_next(Producer *producer, Report *report);
extern void library_report(World *world, Producer *producer, Report report);
extern void library_step(World *world, Random *random);
extern void broker_step(World *world, Random *random);
extern void trouble_step(World *world, Random *random);

/* worker.c */
extern void worker_step(World *world, Random *random);
extern void worker_kill(World *world);

/* checks.c */
extern void check_sent(World *world, int row);
extern void check_stored(World *world, const Message *message, int partition);
extern void check_marked(World *world, int row);
extern void check_refused(World *world, int row);
extern void check_end(World *world);
extern bool is_settled(const World *world, const Row *row);
extern int	count_left(const World *world, bool parked_too);

#endif							/* RELAY_WORLD_H */
