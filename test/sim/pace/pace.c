/*-------------------------------------------------------------------------
 *
 * pace.c
 *		How often the relay's rules have a row read, and whether partitions of
 *		live leaders keep their pace.
 *
 * The simulator looks for what is wrong; this for what is slow.  A backlog goes to
 * brokers that need a while for each batch, so that partitions have their turns; a
 * leader may be away.  Nothing is left to chance, and time is counted, not taken.
 *
 *-------------------------------------------------------------------------
 */
#include "../../../bgworker/relay_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS			40000
#define MOST_PARTITIONS	1000
#define LEADERS			3
#define BATCH_ROWS		500
#define START			1000000

/* what things take, in microseconds */
#define BATCH_USEC		120		/* of the broker's time */
#define STORE_USEC		2		/* a row */
#define LOOK_USEC		1		/* of the worker's: a row that is read, */
#define SEND_USEC		3		/* one that is sent, */
#define MARK_USEC		2		/* one that is marked, */
#define TURN_USEC		20		/* and a turn of its loop */

typedef struct Shape
{
	const char *name;
	int			partitions;
	int			keys;
	int			connect_usec;	/* until the brokers are there */
	int			first_usec;		/* what the first batch of a partition takes, on top */
	int			away_from;		/* rows stored when the last leader goes; ROWS: it stays */

	/* what is asked for */
	double		reads;			/* of a row, at most */
	double		pace;			/* of live leaders, against all being there, at least */
	int64_t		gap;			/* without a row of theirs stored, at most */
} Shape;

static const Shape shapes[] = {
	{"6 partitions", 6, 10000, 0, 0, ROWS, 1.1, 0, 0},
	{"100 partitions", 100, 10000, 0, 0, ROWS, 1.1, 0, 0},
	{"1,000 partitions", 1000, 10000, 0, 0, ROWS, 1.1, 0, 0},
	{"1,000 partitions, slow at first", 1000, 10000, 0, 3000, ROWS, 1.5, 0, 0},
	{"1,000 partitions, slow to connect", 1000, 10000, 1000000, 1000, ROWS, 5, 0, 0},
	{"rows without a key", 1000, 0, 0, 0, ROWS, 1.1, 0, 0},
	{"6 partitions, a leader goes", 6, 10000, 0, 0, ROWS / 4, 2, 0.8, 100000},
	{"6 partitions, a leader is away", 6, 10000, 0, 0, 0, 2, 0, 600000},
	{"300 partitions, a leader goes", 300, 10000, 0, 0, ROWS / 4, 2, 0.6, 100000},
	{"300 partitions, a leader is away", 300, 10000, 0, 0, 0, 2, 0, 600000},
};

/* rows that wait for their broker: lists through their number, -1 the end */
typedef struct Queue
{
	int			first;
	int			last;
	bool		began;			/* something was stored here */
} Queue;

typedef struct Leader
{
	int			partition;		/* whose batch it stores, or -1 */
	int			turn;
	int			first;			/* of that batch */
	int64_t		free_at;
} Leader;

typedef struct World
{
	RelayRules	rules;
	const Shape *shape;
	int64_t		now;
	bool		away;
	Queue		queue[MOST_PARTITIONS];
	Leader		leader[LEADERS];

	/* of rows, by seq */
	int			next[ROWS];		/* in a queue or batch */
	uint64_t	ticket[ROWS];
	bool		published[ROWS];
	int			stored;
	int			marked;
	int64_t		reads;

	/* of partitions that are not led by the last one */
	int			live_left;
	int64_t		live_at;		/* when the last row of theirs was stored */
	int64_t		gap;
} World;

static World world;

static int
partition_of_key(int seq)
{
	uint64_t	key = (uint64_t) seq * UINT64_C(2654435761) % (uint64_t) world.shape->keys;

	return (int) ((key * UINT64_C(0x9e3779b97f4a7c15) >> 33) % (uint64_t) world.shape->partitions);
}

static bool
is_live(int partition)
{
	return partition % LEADERS != LEADERS - 1;
}

/* ---- brokers ---- */

/* The leader takes its next batch, if there is one. */
static void
begin_batch(int n)
{
	Leader	   *leader = &world.leader[n];

	if (leader->partition >= 0 || (world.away && n == LEADERS - 1))
		return;
	for (int tries = 0; tries < world.shape->partitions; tries++)
	{
		Queue	   *queue;
		int			last;

		leader->turn = (leader->turn + 1) % world.shape->partitions;
		queue = &world.queue[leader->turn];
		if (leader->turn % LEADERS != n || queue->first < 0)
			continue;
		leader->partition = leader->turn;
		leader->first = last = queue->first;
		leader->free_at += BATCH_USEC + STORE_USEC + (queue->began ? 0 : world.shape->first_usec);
		for (int rows = 1; rows < BATCH_ROWS && world.next[last] >= 0; rows++)
		{
			last = world.next[last];
			leader->free_at += STORE_USEC;
		}
		queue->first = world.next[last];
		world.next[last] = -1;
		queue->began = true;
		return;
	}
}

/* Reports on a batch that is stored. */
static void
end_batch(Leader *leader)
{
	int			partition = leader->partition;

	for (int seq = leader->first; seq >= 0; seq = world.next[seq])
	{
		relay_rules_persisted(&world.rules, world.ticket[seq], partition, seq, world.now);
		world.stored++;
		if (is_live(partition))
			world.live_left--;
	}
	if (is_live(partition))
	{
		if (world.now - world.live_at > world.gap)
			world.gap = world.now - world.live_at;
		world.live_at = world.now;
	}
	leader->partition = -1;
	world.away = world.stored >= world.shape->away_from;
}

/* Has the brokers work until now; gives when the next batch will be stored. */
static int64_t
run_brokers(void)
{
	int64_t		next = RELAY_NEVER;

	if (world.now < START + world.shape->connect_usec)
		return START + world.shape->connect_usec;
	for (int n = 0; n < LEADERS; n++)
	{
		Leader	   *leader = &world.leader[n];

		while (leader->partition >= 0 && leader->free_at <= world.now)
		{
			end_batch(leader);
			begin_batch(n);
		}
		if (leader->partition < 0)
		{
			leader->free_at = world.now;
			begin_batch(n);
		}
		if (leader->partition >= 0 && leader->free_at < next)
			next = leader->free_at;
	}
	return next;
}

/* ---- the worker ---- */

static void
send_row(int seq, int partition, uint64_t ticket)
{
	Queue	   *queue = &world.queue[partition];

	world.ticket[seq] = ticket;
	world.next[seq] = -1;
	if (queue->first < 0)
		queue->first = seq;
	else
		world.next[queue->last] = seq;
	queue->last = seq;
	world.now += SEND_USEC;
}

/* A row that was read; false: stop reading. */
static bool
take_row(const RelayRead *read, int seq)
{
	RelayRow	row = {.seq = seq,.bytes = 1000,.partition = RELAY_ANY_PARTITION};
	RelayVerdict verdict;
	uint64_t	ticket;

	world.reads++;
	world.now += LOOK_USEC;
	relay_rules_partitions(&world.rules, 0, world.shape->partitions);
	if (world.shape->keys > 0)
	{
		row.key = (uint64_t) seq * UINT64_C(2654435761) % (uint64_t) world.shape->keys + 1;
		row.partition = partition_of_key(seq);
	}
	memcpy(row.event_id, &seq, sizeof(seq));
	verdict = relay_rules_look(&world.rules, read, &row, world.now);
	if (verdict == RELAY_PRODUCE)
		verdict = relay_rules_row(&world.rules, read, &row, world.now, &ticket);
	if (verdict == RELAY_PRODUCE)
		send_row(seq, row.partition < 0 ? 0 : row.partition, ticket);
	return verdict != RELAY_FULL;
}

/* A turn's reading. */
static void
read_rows(void)
{
	RelayRead	read;

	relay_rules_begin(&world.rules);
	while (relay_rules_next_read(&world.rules, &read))
	{
		int64_t		seq = read.from < 0 ? 0 : read.from;
		int			rows = 0;

		while (seq < ROWS && world.published[seq])
			seq++;
		if (read.peek)
		{
			relay_rules_peeked(&world.rules, &read, read.leaf == 0 && seq < ROWS, seq);
			continue;
		}
		for (; seq < ROWS && rows < read.limit; seq++)
		{
			if (world.published[seq])
				continue;
			if (!take_row(&read, (int) seq))
				break;
			rows++;
		}
		relay_rules_read_done(&world.rules, &read, seq >= ROWS, seq);
		break;
	}
	relay_rules_end(&world.rules);
}

static void
mark_rows(void)
{
	static const RelayEntry *entries[RELAY_ENTRIES];
	int			n = relay_rules_to_mark(&world.rules, 0, entries, world.now);

	for (int i = 0; i < n; i++)
		world.published[entries[i]->row.seq] = true;
	world.marked += n;
	relay_rules_marked(&world.rules, 0, entries, n);
	world.now += n * MARK_USEC;
}

/* A turn of the worker's loop. */
static void
turn(void)
{
	int64_t		next = run_brokers();
	bool		busy = false;

	world.now += TURN_USEC;
	relay_rules_tick(&world.rules, world.now);
	if (world.rules.holds_wanted)
	{
		relay_rules_holds_begin(&world.rules);
		relay_rules_holds_end(&world.rules);
	}
	if (relay_rules_wants_read(&world.rules, world.now))
	{
		read_rows();
		busy = true;
	}
	if (relay_rules_mark_due(&world.rules, world.now))
	{
		mark_rows();
		busy = true;
	}
	if (!busy)
	{
		int64_t		wake_at = relay_rules_wake_at(&world.rules, world.now);

		if (wake_at < next)
			next = wake_at;
		if (next > world.now && next != RELAY_NEVER)
			world.now = next;
	}
}

/* Publishes the backlog; gives the time it took for the rows of live leaders. */
static int64_t
run(const Shape *shape)
{
	RelayRules *rules = &world.rules;

	memset((char *) &world + sizeof(world.rules), 0, sizeof(world) - sizeof(world.rules));
	world.shape = shape;
	world.now = world.live_at = START;
	world.away = shape->away_from == 0;
	for (int p = 0; p < MOST_PARTITIONS; p++)
		world.queue[p].first = -1;
	for (int n = 0; n < LEADERS; n++)
		world.leader[n].partition = -1;
	for (int seq = 0; seq < ROWS; seq++)
		world.live_left += shape->keys == 0 || is_live(partition_of_key(seq));
	relay_rules_init(rules);
	relay_rules_topic_set(rules, 0, false, 0);
	while (world.live_left > 0 && world.stored < ROWS && world.now < 600 * (int64_t) START)
		turn();
	return world.now - START;
}

int
main(void)
{
	int			failed = 0;

	for (size_t n = 0; n < sizeof(shapes) / sizeof(shapes[0]); n++)
	{
		const Shape *shape = &shapes[n];
		Shape		healthy = *shape;
		int64_t		with_all;
		int64_t		usec;
		double		reads;
		double		pace;
		bool		ok;

		healthy.away_from = ROWS;
		with_all = run(&healthy);
		usec = run(shape);
		reads = (double) world.reads / ROWS;
		pace = (double) with_all / (double) usec;
		ok = reads <= shape->reads && pace >= shape->pace && (shape->gap == 0 || world.gap <= shape->gap);
		failed += !ok;
		printf("%-36s %4.2f reads of a row, %6.0f rows/s, pace %4.2f, longest gap %4" PRId64 " ms%s\n", shape->name, reads,
			   world.stored / ((double) usec / 1e6), pace, world.gap / 1000, ok ? "" : ": NOT as it should be");
	}
	return failed > 0;
}
