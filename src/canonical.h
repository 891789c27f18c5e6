/*-------------------------------------------------------------------------
 *
 * canonical.h
 *	  Canonical JSON text, piece by piece: strings, exact numbers, name order.
 *
 * The form is that of RFC 8785 but for numbers, which keep every digit.  The
 * caller walks a value, writes structure and literals itself, and hands
 * strings and numbers to this file.  Nothing of the server is used, so the
 * same object file runs in the server and in a test driver.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_H
#define IDEM_CANONICAL_H

#include <stdbool.h>
#include <stddef.h>

#define CANONICAL_BUFFER_SIZE 1024

/*
 * Where canonical text goes.  "write" gets the text in pieces of at most
 * CANONICAL_BUFFER_SIZE bytes.  It may leave by a jump: the sink owns nothing
 * that would have to be released.
 */
typedef struct CanonicalSink
{
	void		(*write) (void *ctx, const char *data, size_t len);
	void	   *ctx;
	size_t		used;
	char		buffer[CANONICAL_BUFFER_SIZE];
} CanonicalSink;

extern void canonical_init(CanonicalSink *sink,
						   void (*write) (void *ctx, const char *data, size_t len),
						   void *ctx);
extern void canonical_flush(CanonicalSink *sink);
extern void canonical_bytes(CanonicalSink *sink, const char *data, size_t len);
extern void canonical_string(CanonicalSink *sink, const char *utf8, size_t len);
extern void canonical_number(CanonicalSink *sink, bool negative,
							 const char *digits, size_t ndigits, int point);
extern int	canonical_compare_names(const char *a, size_t alen,
									const char *b, size_t blen);

/* One byte of structure. */
static inline void
canonical_char(CanonicalSink *sink, char c)
{
	if (sink->used == CANONICAL_BUFFER_SIZE)
		canonical_flush(sink);
	sink->buffer[sink->used++] = c;
}

#endif							/* IDEM_CANONICAL_H */
