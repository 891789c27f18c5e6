/*-------------------------------------------------------------------------
 *
 * record_answer.h
 *		HTTP answers for requests that are not to be run.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_ANSWER_H
#define RECORD_ANSWER_H

#include "utils/jsonb.h"

#include "record_store.h"

typedef struct RecordAnswer
{
	int32		status;
	Jsonb	   *headers;
	bytea	   *body;			/* NULL: the stored body was not kept */
} RecordAnswer;

extern RecordAnswer record_yield_answer(void);
extern bool record_problem_answer(const char *code, RecordAnswer *answer);
extern const char *record_outcome_name(RecordOutcome outcome);
extern RecordAnswer record_answer(RecordOutcome outcome, int retry_after, const RecordRow *row);

#endif							/* RECORD_ANSWER_H */
