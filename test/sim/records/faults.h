/*-------------------------------------------------------------------------
 *
 * faults.h
 *		Deliberate faults of records, each to be found by the simulator.
 *
 * A build has one fault at most, -DFAULT=FAULT_name, and is then wrong on
 * purpose; without it, none of this leaves a trace in the program.  The second
 * column is the invariant that it is there to break.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORDS_FAULTS_H
#define RECORDS_FAULTS_H

#include "../simulator.h"

#define FAULT_LIST(F) \
	/* in the rules */ \
	F(skip_fence, "zombies-refused", "an attempt that lost the record may complete it") \
	F(forget_dedup, "call-once", "a call that nobody deduplicates is made again when the lease is over") \
	F(dedup_start_only, "dedup-window", "a repeated call has to start, not to end, before the far side forgets") \
	F(dedup_moves, "dedup-window", "the far side's memory is counted from the last call") \
	F(lease_over_early, "one-owner", "a lease counts as over a tick too early") \
	F(lease_over_late, "answers-true", "a lease counts as alive at its very end") \
	F(attempt_plus_one, "attempts-grow", "the new attempt is the old one's number and one more") \
	F(blind_to_hash, "mismatch-never-replays", "a completed record is replayed to any request") \
	F(complete_marked, "transitions", "a call is marked and answered within one transaction") \
	F(other_response, "one-response", "the owner may complete a second time, with another response") \
	F(lease_ignores_call, "call-deadline", "the lease does not last until the call's deadline") \
	F(takeover_forgets_call, "dedup-window", "a new attempt forgets the call of the one before") \
	F(call_expires, "unsettled-kept", "a record whose call may have been made expires") \
	F(unknown_runs, "unknown-stays", "an UNKNOWN record is run again") \
	F(unknown_expires, "unknown-stays", "the sweep deletes UNKNOWN records") \
	F(resolve_early, "verdicts-true", "an operator may settle while the call may be on its way") \
	F(resolve_never, "liveness", "an operator always has to wait") \
	F(sweep_never, "liveness", "the sweep keeps everything") \
	/* in how they are carried out */ \
	F(no_redecide, "one-owner", "a claim writes what it decided before it had the row's lock") \
	F(sweep_no_recheck, "unsettled-kept", "the sweep deletes what it saw before it had the row's lock") \
	F(new_call_key, "one-capture", "each attempt gives the far side a key of its own") \
	F(no_key_lock, "never-waits", "a claim inserts without the key's lock") \
	F(no_second_look, "never-waits", "a claim inserts without looking again under the key's lock") \
	F(lost_update, "one-owner", "snapshot isolation writes over what it did not see") \
	F(no_flush, "one-owner", "a crash loses claims that were answered") \
	F(sequence_lost, "attempts-grow", "a crash takes back attempt numbers that were told and not committed") \
	F(call_late, "call-deadline", "an owner makes its call after the deadline") \
	F(zombie_goes_on, "event-iff-completed", "an owner that is refused commits its business rows all the same") \
	F(repeat_emits, "event-iff-completed", "an owner that repeats its completion emits its event again") \
	F(resolve_silent, "event-iff-completed", "an operator who settles as completed emits no event")

enum
{
	FAULT_none,
	FAULT_LIST(FAULT_ENUM)
};

#endif							/* RECORDS_FAULTS_H */
