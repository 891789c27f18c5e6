/*-------------------------------------------------------------------------
 *
 * idem_clock.h
 *		The clock of idempotency records.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLOCK_H
#define IDEM_CLOCK_H

#include "utils/timestamp.h"

#ifdef IDEM_TEST
extern int	idem_test_clock;	/* ms that tests put the clock forward */
#endif

/* The real time, not that of the transaction's start. */
static inline TimestampTz
idem_now(void)
{
#ifdef IDEM_TEST
	return GetCurrentTimestamp() + idem_test_clock * INT64CONST(1000);
#else
	return GetCurrentTimestamp();
#endif
}

#endif							/* IDEM_CLOCK_H */
