/*-------------------------------------------------------------------------
 *
 * idem_args.c
 *		Arguments of the SQL functions: limits and conversions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_args.h"

#define REFUSE_HINT		"Refuse such a value where it enters the application."

/* longest interval that is taken, in microseconds: ten years */
#define INTERVAL_MAX	(INT64CONST(3660) * USECS_PER_DAY)

/* Raises 22004 when an argument is NULL. */
void
idem_require_arg(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name),
				 errhint(REFUSE_HINT)));
}

/* Whether text holds a control character: U+0000-001F, U+007F-009F. */
static bool
has_control_character(const char *s, int len)
{
	bool		utf8 = GetDatabaseEncoding() == PG_UTF8;

	for (int i = 0; i < len; i++)
	{
		unsigned char c = s[i];

		if (c < 0x20 || c == 0x7f)
			return true;
		if (utf8 && c == 0xc2 && i + 1 < len && (unsigned char) s[i + 1] < 0xa0)
			return true;
	}
	return false;
}

/*
 * Checks a text that becomes part of a key: 1 to 255 characters, no control
 * characters.  Checked here, because an index would refuse some long values
 * only, and with an error that says nothing to a caller.
 */
void
idem_check_name(text *value, const char *name)
{
	int			nchars = pg_mbstrlen_with_len(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));

	if (nchars == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name),
				 errhint(REFUSE_HINT)));
	if (nchars > IDEM_NAME_MAX_CHARS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errdetail("It has %d characters; at most %d are possible.",
						   nchars, IDEM_NAME_MAX_CHARS),
				 errhint(REFUSE_HINT)));
	if (has_control_character(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not contain control characters", name),
				 errhint(REFUSE_HINT)));
}

/* A text argument that becomes part of a key: not NULL, and checked. */
text *
idem_name_arg(FunctionCallInfo fcinfo, int argno, const char *name)
{
	idem_require_arg(fcinfo, argno, name);
	idem_check_name(PG_GETARG_TEXT_PP(argno), name);
	return PG_GETARG_TEXT_PP(argno);
}

/*
 * An interval in microseconds, with a day of 24 hours and a month of 30 days, so
 * that a length never depends on a time zone.  Cut off beyond what is taken.
 */
int64
idem_interval_usec(const Interval *value)
{
	/* in floating point first, for the sum may overflow */
	double		approximate = (double) value->time +
		((double) value->day + (double) value->month * DAYS_PER_MONTH) * USECS_PER_DAY;

	if (approximate > INTERVAL_MAX)
		return INTERVAL_MAX + 1;
	if (approximate < -INTERVAL_MAX)
		return -INTERVAL_MAX;
	return value->time + (value->day + (int64) value->month * DAYS_PER_MONTH) * USECS_PER_DAY;
}

/*
 * An interval argument in microseconds.  False when it is NULL.  Raises 22023
 * when it is less than min or more than ten years.
 */
bool
idem_interval_arg(FunctionCallInfo fcinfo, int argno, const char *name,
				  int64 min, int64 *usec)
{
	if (PG_ARGISNULL(argno))
		return false;
	*usec = idem_interval_usec(PG_GETARG_INTERVAL_P(argno));
	if (*usec < min || *usec > INTERVAL_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", name),
				 errdetail("It must be %s and at most 3660 days.",
						   min > 0 ? "greater than zero" : "zero or more"),
				 errhint("Give a length of time such as interval '30 s', or leave it out for the default.")));
	return true;
}

/* An integer argument that counts rows: from 1 to max. */
int
idem_count_arg(FunctionCallInfo fcinfo, int argno, const char *name, int max)
{
	int			count;

	idem_require_arg(fcinfo, argno, name);
	count = PG_GETARG_INT32(argno);
	if (count < 1 || count > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", name),
				 errdetail("It must be from 1 to %d.", max),
				 errhint("Call the function again for more rows.")));
	return count;
}
