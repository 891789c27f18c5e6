/*-------------------------------------------------------------------------
 *
 * seen.h
 *		What has happened at least once: a run that never saw it proves nothing of it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORDS_SEEN_H
#define RECORDS_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "../../../src/record_rules.h"

#define HAPPENING_LIST(H) \
	H(hidden, "a claim could neither see nor lock the row") \
	H(key_lock_refused, "a claim was refused the key's lock") \
	H(serialization, "40001") \
	H(lock_wait, "a function of the owner waited for the row") \
	H(lock_timeout, "55P03") \
	H(row_replaced, "the row waited for was deleted and another inserted") \
	H(savepoint, "a claim was rolled back to a savepoint") \
	H(prepared_commit, "a prepared transaction was committed") \
	H(prepared_abort, "a prepared transaction was rolled back") \
	H(prepared_crash, "a prepared transaction survived a crash") \
	H(crash, "the server crashed") \
	H(died, "a worker died") \
	H(stale_resumed, "the sweeper of unfinished work resumed a record") \
	H(max_tries, "a record without a call became UNKNOWN") \
	H(too_late, "an owner was too late for its call") \
	H(deduplicated, "the acquirer knew the call") \
	H(answer_lost, "an answer was lost") \
	H(answer_stray, "an answer found nobody who waits for it") \
	H(late_completion, "an UNKNOWN record was completed by a late answer") \
	H(over_completion, "a record was completed after its lease") \
	H(dropped, "the sweep dropped a response") \
	H(deleted, "the sweep deleted a record") \
	H(sweep_rechecked, "the sweep saw another row once it had the lock") \
	H(redecided, "a claim decided otherwise once it had the row's lock") \
	H(boundary, "a claim came at the very end of a lease")

enum
{
#define HAPPENING_ENUM(name, text) SEEN_##name,
	HAPPENING_LIST(HAPPENING_ENUM)
#undef HAPPENING_ENUM
	HAPPENINGS
};

#define OUTCOMES	8
#define VERDICTS	14

/* the functions that come to a verdict */
enum
{
	SEEN_BEFORE_CALL,
	SEEN_COMPLETE,
	SEEN_MARK_UNKNOWN,
	SEEN_YIELD,
	SEEN_RESOLVE,
	FUNCTIONS
};

typedef struct Seen
{
	int64_t		happenings[HAPPENINGS];
	int64_t		outcomes[OUTCOMES];
	int64_t		verdicts[FUNCTIONS][VERDICTS];
} Seen;

extern Seen seen;

#define SEEN(what)	(seen.happenings[SEEN_##what]++)

extern int	seen_report(bool complete);

#endif							/* RECORDS_SEEN_H */
