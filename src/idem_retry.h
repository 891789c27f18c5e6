/*-------------------------------------------------------------------------
 *
 * idem_retry.h
 *		A hint for serialization failures.
 *
 * Under REPEATABLE READ and SERIALIZABLE the server may answer 40001 from
 * inside our statements.  While a frame of this kind is pushed, such an error
 * says what to do about it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RETRY_H
#define IDEM_RETRY_H

#include "utils/elog.h"

typedef ErrorContextCallback IdemRetryHint;

/* Runs while an error is being reported. */
static inline void
idem_retry_hint_callback(void *arg)
{
	(void) arg;
	if (geterrcode() == ERRCODE_T_R_SERIALIZATION_FAILURE)
		errhint("Run the whole transaction again, or use READ COMMITTED.");
}

static inline void
idem_retry_hint_push(IdemRetryHint *frame)
{
	frame->callback = idem_retry_hint_callback;
	frame->arg = NULL;
	frame->previous = error_context_stack;
	error_context_stack = frame;
}

static inline void
idem_retry_hint_pop(IdemRetryHint *frame)
{
	error_context_stack = frame->previous;
}

#endif							/* IDEM_RETRY_H */
