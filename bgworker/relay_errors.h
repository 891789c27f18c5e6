/*-------------------------------------------------------------------------
 *
 * relay_errors.h
 *		Which of Kafka's errors is what to the relay.
 *
 * Pure.  The README has the table for users; a test compares the two.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_ERRORS_H
#define RELAY_ERRORS_H

typedef enum RelayClass
{
	RELAY_TRANSIENT,			/* wait: it passes by itself, and costs no attempt */
	RELAY_TARGET,				/* the topic waits, and is probed by one row */
	RELAY_SIZE,					/* the batch is too large: a row's fault only if it was alone */
	RELAY_ROW,					/* the row's fault, if it was alone */
	RELAY_RETURNED				/* given back by the library, which was told to */
} RelayClass;

typedef struct RelayError
{
	const char *name;			/* as the library calls it */
	RelayClass	class;
} RelayError;

extern const RelayError relay_errors[];
extern const int relay_nerrors;

extern RelayClass relay_error_class(const char *name);

#endif							/* RELAY_ERRORS_H */
