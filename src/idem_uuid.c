/*-------------------------------------------------------------------------
 *
 * idem_uuid.c
 *		Version 7 UUIDs (RFC 9562, section 5.7).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "fmgr.h"
#include "utils/builtins.h"

#include "compat.h"
#include "idem_uuid.h"

#define NS_PER_MS		INT64CONST(1000000)
#define MS_PER_DAY		INT64CONST(86400000)

/* the fraction of a millisecond fills 12 bits */
#define FRACTION_STEPS	4096

/* smallest step that always changes the fraction: one 4096th of a millisecond */
#define MIN_STEP_NS		(NS_PER_MS / FRACTION_STEPS + 1)

/* The clock in nanoseconds, made to grow with each call in this process. */
static int64
growing_clock_ns(void)
{
	static int64 previous = 0;
	struct timespec now;
	int64		ns;

	clock_gettime(CLOCK_REALTIME, &now);
	ns = (int64) now.tv_sec * 1000 * NS_PER_MS + now.tv_nsec;
	if (ns < previous + MIN_STEP_NS)
		ns = previous + MIN_STEP_NS;
	previous = ns;
	return ns;
}

/* Makes a UUID that is greater than every one made before in this process. */
void
idem_uuid7_make(pg_uuid_t *uuid)
{
	int64		ns = growing_clock_ns();
	int64		ms = ns / NS_PER_MS;
	int			fraction = (int) ((ns % NS_PER_MS) * FRACTION_STEPS / NS_PER_MS);

	for (int i = 0; i < 6; i++)
		uuid->data[i] = (unsigned char) (ms >> (8 * (5 - i)));
	uuid->data[6] = (unsigned char) (0x70 | (fraction >> 8));
	uuid->data[7] = (unsigned char) fraction;
	if (!pg_strong_random(&uuid->data[8], 8))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	uuid->data[8] = (unsigned char) (0x80 | (uuid->data[8] & 0x3f));
}

/* The UTC day, counted from 1970, inside a version 7 UUID; false for others. */
bool
idem_uuid7_day(const pg_uuid_t *uuid, int64 *day)
{
	int64		ms = 0;

	if ((uuid->data[6] >> 4) != 7 || (uuid->data[8] >> 6) != 2)
		return false;
	for (int i = 0; i < 6; i++)
		ms = (ms << 8) | uuid->data[i];
	*day = ms / MS_PER_DAY;
	return true;
}

/*
 * idem_uuid7() -> uuid
 *
 * A new version 7 UUID: 48 bits of Unix time in milliseconds, 12 bits of its
 * fraction (RFC 9562, section 6.2, method 3), 62 random bits.  Values of one
 * session always grow.  Touches no table.
 */
PG_FUNCTION_INFO_V1(idem_uuid7);
Datum
idem_uuid7(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *uuid = palloc(sizeof(pg_uuid_t));

	(void) fcinfo;
	idem_uuid7_make(uuid);
	PG_RETURN_UUID_P(uuid);
}
