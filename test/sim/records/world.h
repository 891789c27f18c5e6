/*-------------------------------------------------------------------------
 *
 * world.h
 *		The simulated world: clocks, clients' requests, an acquirer, operators.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORDS_WORLD_H
#define RECORDS_WORLD_H

#include <stddef.h>

#include "faults.h"
#include "seen.h"
#include "store.h"

/* most times are multiples of this, so that they often coincide */
#define TICK			INT64_C(250000)

#define MAX_WORKERS		6
#define MAX_PREPARED	3
#define MAX_MESSAGES	16
#define MAX_RECORDS		256

/* hash of the request that clients usually send with a key */
#define USUAL_HASH		1
#define OTHER_HASH		2

#define INVARIANT_LIST(I) \
	I(one_owner, "one-owner") \
	I(attempts_grow, "attempts-grow") \
	I(one_response, "one-response") \
	I(mismatch, "mismatch-never-replays") \
	I(call_deadline, "call-deadline") \
	I(call_once, "call-once") \
	I(dedup_window, "dedup-window") \
	I(one_capture, "one-capture") \
	I(unknown_stays, "unknown-stays") \
	I(unsettled_kept, "unsettled-kept") \
	I(zombies_refused, "zombies-refused") \
	I(transitions, "transitions") \
	I(event_iff, "event-iff-completed") \
	I(verdicts_true, "verdicts-true") \
	I(answers_true, "answers-true") \
	I(never_waits, "never-waits") \
	I(liveness, "liveness")

enum
{
	INVARIANT_none = HOLDS,
	INVARIANT_LIST(INVARIANT_ENUM)
};

/* states of a business row */
typedef enum BusinessState
{
	BUSINESS_NONE,
	BUSINESS_PENDING,
	BUSINESS_DONE,				/* completed, an event tells of it */
	BUSINESS_UNCERTAIN,			/* UNKNOWN */
	BUSINESS_VOID				/* settled as not applied, no event */
} BusinessState;

/* verdicts of an operator; any numbers that are not 0 */
#define VERDICT_COMPLETED	1
#define VERDICT_NOT_APPLIED	2

typedef enum Answer
{
	ANSWER_NONE,
	ANSWER_APPROVED,
	ANSWER_DECLINED
} Answer;

/* how the work of a key is done */
typedef enum Style
{
	STYLE_LOCAL,				/* no external call */
	STYLE_CLAIM_CALL,			/* the claim marks the call */
	STYLE_BEFORE_CALL			/* idem_before_call does */
} Style;

/* an episode's lengths, faults and habits */
typedef struct Config
{
	int			keys;
	int			workers;
	Style		style[MAX_KEYS];
	int64_t		window[MAX_KEYS];	/* deduplication; 0: none */
	int64_t		lease;			/* most claims' */
	int64_t		timeout;		/* most calls' */
	int64_t		margin;
	int64_t		jitter;			/* how far the server's clock is off, at most */
	int64_t		transit;		/* longest way of a call to the acquirer */
	int64_t		grace;
	int64_t		response_retention;
	int64_t		record_retention;
	int			max_tries;
	bool		clients_return;	/* else the sweeper alone ends what was begun */

	/* per mille */
	int			die;
	int			crash;
	int			prepare;
	int			repeatable_read;
	int			other_hash;
	int			hang;			/* an answer that never comes */
	int			late;			/* an answer that comes late */
	int			decline;
	int			savepoint;
	int			clock;			/* share of steps that move the clock */
	int			stall;			/* share of steps that a slow worker misses */
} Config;

/* What is known of a record from outside, to check it against. */
typedef struct Witness
{
	bool		used;
	bool		inserted;		/* committed at least once */
	int			key;
	int			hash;
	BusinessState business;
	int			events;
	RecordState state;			/* as last committed */
	int			verdict;
	bool		answered;
	int64_t		response;
	int64_t		response_expires_at;
	int64_t		first_call_real;	/* unset: no call was marked */
	int			calls_left;
	int			captures;

	/* the acquirer's memory */
	bool		known;
	int64_t		known_since;
	int			known_job;
	Answer		remembered;
} Witness;

/* what a key's last owner was told */
typedef struct Owner
{
	int64_t		attempt;		/* 0: none yet */
	int64_t		claimed_at;
	int64_t		lease_expires_at;
	bool		ended;			/* completed, yielded or marked UNKNOWN */
} Owner;

/* a call or an answer on its way */
typedef struct Message
{
	bool		used;
	bool		is_answer;
	int64_t		due;			/* real time */
	int			record;
	int			worker;
	int			job;			/* of the worker, when it called */
	uint64_t	luck;			/* what follows is drawn from it */
	Answer		answer;
} Message;

/* what a worker does next */
typedef enum Pc
{
	PC_IDLE,
	PC_CLAIM,					/* a claim begins */
	PC_LOOK,
	PC_LOCK_KEY,
	PC_LOOK_REFUSED,			/* the key's lock was refused */
	PC_LOOK_LATEST,				/* before an insert */
	PC_INSERT,
	PC_LOCK_ROW,
	PC_LOOK_LOCKED,				/* the row was locked */
	PC_WRITE,
	PC_CLAIMED,					/* the claim has its outcome */
	PC_COMMIT_CLAIM,
	PC_WORK,					/* owner of a record: what now? */
	PC_LEAVE,					/* the call leaves */
	PC_WAIT,					/* for its answer */
	PC_CALL_ROW,				/* a function of the owner waits for the row */
	PC_BUSINESS,				/* writes business rows and event */
	PC_COMMIT,
	PC_PREPARED					/* somebody else ends the transaction */
} Pc;

/* functions of a record's owner */
typedef enum Function
{
	FUNCTION_NONE,
	FUNCTION_BEFORE_CALL,
	FUNCTION_COMPLETE,
	FUNCTION_MARK_UNKNOWN,
	FUNCTION_YIELD
} Function;

/* how a transaction that was prepared ended */
typedef enum Ended
{
	ENDED_NOT,
	ENDED_COMMITTED,
	ENDED_ABORTED
} Ended;

/* a server process of the application, with one request at a time */
typedef struct Worker
{
	Pc			pc;
	int			job;			/* counts requests and claims of the sweeper */
	int			tx;
	Ended		ended;

	/* the request */
	int			key;
	int			hash;
	bool		repeatable_read;
	bool		one_transaction;	/* claim and completion share it */
	bool		stale;			/* idem_claim_stale */
	int64_t		window;			/* deduplication that it counts on; 0: none */
	int64_t		timeout;		/* of its calls */
	int64_t		lease;

	/* the claim */
	RecordClaim claim;
	int64_t		claim_real;		/* real time before it */
	RecordDecision decision;
	Row			row;
	bool		key_locked;
	int			passes;
	bool		again;			/* a second claim in the transaction */

	/* the record that it owns, or believes to own */
	int64_t		attempt;		/* 0: none */
	int64_t		claimed_at;
	int64_t		lease_expires_at;
	int			record;
	bool		told;			/* the claim is committed and it knows */
	bool		marked;			/* a call */
	int64_t		leave_by;		/* real time */
	bool		left;			/* the call did */
	Answer		answer;
	int64_t		response;
	bool		completed;		/* its completion was committed, and it knows */
	bool		gave_up;

	/* a function of the owner */
	Function	function;
	int64_t		now;			/* its time */
	int64_t		function_real;
	int			waited_for;		/* insertion of the row it waits for; 0: none */
	RecordDecision mark;
	bool		changed;
	bool		same_transaction;	/* the function runs in the claim's transaction */
} Worker;

/* steps of the sweep and of an operator */
typedef struct Clerk
{
	int			pc;
	int			tx;
	int			key;
	int64_t		now;
	int			verdict;
	RecordSweep seen;
	bool		emits;
} Clerk;

struct World
{
	Life		life;
	Config		config;
	bool		calm;			/* no new faults: things must come to an end */
	bool		closed;			/* clients have stopped */
	bool		arrived[MAX_KEYS];	/* in the calm end: keys that are where they have to be */

	int64_t		real;			/* real time */
	int64_t		offset;			/* of the server's clock */
	int64_t		attempts;		/* the sequence */
	int64_t		responses;		/* each is new */

	Store		store;
	Worker		workers[MAX_WORKERS];
	struct
	{
		int			tx;			/* NO_TX: free */
		int			worker;
		int			job;
	}			prepared[MAX_PREPARED];
	Clerk		sweep;
	Clerk		operator;
	Message		messages[MAX_MESSAGES];

	Witness		records[MAX_RECORDS];
	int			nrecords;
	Owner		owners[MAX_KEYS];
	int64_t		highest[MAX_KEYS];	/* attempt number told */
};

/* the server's clock */
static inline int64_t
server_now(const World *world)
{
	return world->real + world->offset;
}

static inline bool
is_set(int64_t time)
{
	return time != RECORD_TIME_UNSET;
}

/* a time in ticks, for people; unset: -1 */
static inline double
ticks(int64_t time)
{
	return is_set(time) ? (double) time / TICK : -1;
}

/* world.c: the world and its clock */
extern void world_move_clock(World *world, Random *random);
extern bool world_idle(const World *world);

/* actors: one step each */
extern void worker_step(World *world, int worker, Random *random);
extern void worker_lost(World *world, int worker);
extern void claim_step(World *world, Worker *worker);
extern void owner_call(World *world, Worker *worker, Function function);
extern void owner_row(World *world, Worker *worker, Random *random);
extern void owner_business(World *world, Worker *worker);
extern void sweep_step(World *world, Random *random);
extern void operator_step(World *world, Random *random);
extern void prepared_step(World *world, Random *random);
extern void server_crash(World *world);
extern bool acquirer_send(World *world, Worker *worker, Random *random);
extern void acquirer_deliver(World *world, Message *message);

/* checks.c: what has to hold */
extern void check_drawn(World *world, int key, int64_t attempt);
extern void check_answer(World *world, const Worker *worker);
extern void check_owner(World *world, const Worker *worker, const char *function);
extern void check_told(World *world, const Worker *worker);
extern void check_leaves(World *world, const Worker *worker);
extern void check_capture(World *world, int record);
extern void commit_checked(World *world, int tx);

/* rules.c: the rules, and the faults that a build may have in them */
extern RecordDecision rules_claim(const Row *row, const RecordClaim *claim, int hash);
extern RecordVerdict rules_before_call(const Row *row, int64_t attempt, const RecordCall *call,
									   RecordDecision *decision);
extern RecordVerdict rules_complete(const Row *row, int64_t attempt, int64_t response, int64_t now);
extern RecordVerdict rules_resolve(const Row *row, int verdict, int64_t grace, int64_t now);
extern RecordSweep rules_sweep(const Row *row, int64_t now);
extern const char *outcome_name(RecordOutcome outcome);
extern const char *verdict_name(RecordVerdict verdict);
extern const char *state_name(RecordState state);

#endif							/* RECORDS_WORLD_H */
