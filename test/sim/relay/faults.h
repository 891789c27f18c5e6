/*-------------------------------------------------------------------------
 *
 * faults.h
 *		Deliberate faults of the relay, each to be found by the simulator.
 *
 * A build has one at most, -DFAULT=FAULT_name.  The second column is the
 * invariant that it is there to break.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_FAULTS_H
#define RELAY_FAULTS_H

#include "../simulator.h"

#define FAULT_LIST(F) \
	F(mark_unstored, "marked-is-stored", "a row that Kafka may have stored counts as stored") \
	F(trust_later, "marked-is-stored", "a row counts as stored when a later one of its partition is") \
	F(dirty_read, "no-ghost", "a read shows rows of transactions that have not committed") \
	F(hints_late, "all-published", "the hints are taken after the snapshot, and dropped") \
	F(no_sweep, "all-published", "a worker that starts reads only what it hears of") \
	F(forget_returned, "all-published", "rows that a failed stream gives back are not read again") \
	F(wait_forever, "all-published", "a producer of which nothing more comes is not made anew") \
	F(forget_key, "all-published", "rows left behind with a key are not read again") \
	F(forget_partition, "all-published", "rows left behind with a partition are not read again") \
	F(no_prepared, "all-published", "nobody asks for a sweep after COMMIT PREPARED") \
	F(no_late_read, "order", "rows that the snapshot shows below the positions are left for later") \
	F(no_gapless, "order", "a stream goes on after a row that it was refused for good") \
	F(no_first_alone, "order", "many rows go to a partition that does not know the stream") \
	F(no_holds, "order", "a worker that starts does not read the parked rows") \
	F(no_hold, "order", "later rows of a key go on while one is tried alone") \
	F(two_of_key, "one-of-a-key", "the limit of rows in flight per key is not told to the rules") \
	F(no_marks, "repeats", "acknowledgements are dropped, and their rows sent again") \
	F(big_window, "window", "the window is twice what was set") \
	F(outage_counts, "parked-alone", "a topic that takes nothing counts as an attempt of a row") \
	F(batch_counts, "parked-alone", "a row that was refused with others counts as refused alone") \
	F(no_sequence, "violations-counted", "brokers take batches in any order") \
	F(retry_never, "parked-or-published", "a row that was refused once is parked only by an operator")

enum
{
	FAULT_none,
	FAULT_LIST(FAULT_ENUM)
};

#endif							/* RELAY_FAULTS_H */
