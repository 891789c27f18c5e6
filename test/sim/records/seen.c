/*-------------------------------------------------------------------------
 *
 * seen.c
 *		What has happened at least once: a run that never saw it proves nothing of it.
 *
 *-------------------------------------------------------------------------
 */
#include "seen.h"

#include <stdio.h>

#include "world.h"

Seen		seen;

#define BIT(verdict)	(1u << RECORD_##verdict)

/* The verdicts that each function can come to. */
static const struct
{
	const char *name;
	unsigned	verdicts;
}			functions[FUNCTIONS] = {
	{"before_call: ", BIT(OK) | BIT(ABSENT) | BIT(FENCED) | BIT(IS_UNKNOWN) | BIT(IS_COMPLETED) |
	BIT(LEASE_OVER) | BIT(PAST_DEDUP)},
	{"complete: ", BIT(OK) | BIT(REPEAT) | BIT(ABSENT) | BIT(FENCED) | BIT(CALL_MARKED_HERE) |
	BIT(OTHER_RESPONSE) | BIT(RESPONSE_EXPIRED)},
	{"mark_unknown: ", BIT(OK) | BIT(REPEAT) | BIT(ABSENT) | BIT(FENCED) | BIT(IS_COMPLETED)},
	{"yield: ", BIT(OK) | BIT(REPEAT) | BIT(ABSENT) | BIT(FENCED) | BIT(IS_UNKNOWN) | BIT(IS_COMPLETED) |
	BIT(LEASE_OVER)},
	{"resolve: ", BIT(OK) | BIT(REPEAT) | BIT(ABSENT) | BIT(NOT_UNKNOWN) | BIT(IS_COMPLETED) |
	BIT(OTHER_VERDICT) | BIT(RESPONSE_EXPIRED) | BIT(TOO_EARLY)}
};

static const char *const happenings[] = {
#define HAPPENING_TEXT(name, text) text,
	HAPPENING_LIST(HAPPENING_TEXT)
#undef HAPPENING_TEXT
};

/* Counts one thing, and complains when it should have been and never was. */
static int
never(int64_t times, bool complains, const char *what, const char *more)
{
	if (times > 0)
		return 0;
	if (complains)
		printf("never seen: %s%s\n", what, more);
	return 1;
}

/*
 * Says how often things happened; gives the number of those that never did,
 * and, of a run that should be complete, their names.
 */
int
seen_report(bool complete)
{
	int			missed = 0;
	int			things = HAPPENINGS + OUTCOMES;

	printf("claims:");
	for (int i = 0; i < OUTCOMES; i++)
		printf(" %s %lld", outcome_name((RecordOutcome) i), (long long) seen.outcomes[i]);
	putchar('\n');
	for (int i = 0; i < OUTCOMES; i++)
		missed += never(seen.outcomes[i], complete, "", outcome_name((RecordOutcome) i));
	for (int i = 0; i < HAPPENINGS; i++)
		missed += never(seen.happenings[i], complete, "", happenings[i]);
	for (int i = 0; i < FUNCTIONS; i++)
		for (int verdict = 0; verdict < VERDICTS; verdict++)
		{
			if ((functions[i].verdicts & (1u << verdict)) == 0)
				continue;
			things++;
			missed += never(seen.verdicts[i][verdict], complete, functions[i].name,
							verdict_name((RecordVerdict) verdict));
		}
	printf("%d of %d things that can happen were seen\n", things - missed, things);
	return missed;
}
