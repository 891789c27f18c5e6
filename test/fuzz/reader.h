/*-------------------------------------------------------------------------
 *
 * reader.h
 *	  The reader of JSON text in surroundings that fail on demand.
 *
 * reader.c is built twice: with the sources as they are, and with all their
 * limits made small (see run).  Both must give one answer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_READER_H
#define FUZZ_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* A failed expectation stops the fuzzer, which keeps the text. */
#define EXPECT(condition) \
	do { \
		if (!(condition)) \
		{ \
			fprintf(stderr, "%s:%d: this does not hold: %s\n", \
					__FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

/* What came of a text; the values of CanonicalMode and CanonicalTextFault. */
typedef struct Answer
{
	bool		accepted;
	int			fault;
	size_t		at;				/* of the fault */
	size_t		fault_len;
	char	   *text;			/* canonical, with a zero byte; to be freed */
	size_t		len;
	long		allocations;
	long		ticks;
} Answer;

extern Answer read_text(const char *data, size_t len, int mode, size_t filler,
						long fail_at);
extern void jump_out(const char *data, size_t len, long jump_at);

/* the same, with small limits */
extern Answer small_read_text(const char *data, size_t len, int mode,
							  size_t filler, long fail_at);
extern void small_jump_out(const char *data, size_t len, long jump_at);

#endif							/* FUZZ_READER_H */
