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
#include <stdint.h>
#include <string.h>

/* How deep arrays and objects may be nested, in any entry. */
#define CANONICAL_MAX_DEPTH 1000

#define CANONICAL_BUFFER_SIZE 8192

/*
 * Both modes write the same text.  CANONICAL_JCS refuses a number for which
 * RFC 8785 might write another one.
 */
typedef enum CanonicalMode
{
	CANONICAL_EXACT,
	CANONICAL_JCS
} CanonicalMode;

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

/*
 * The decimal 0.DIGITS x 10^point: "digits" are "ndigits" characters 0 to 9,
 * with the decimal point after the first "point" of them (which may lie before
 * or behind all of them).
 */
typedef struct CanonicalNumber
{
	bool		negative;
	const char *digits;
	size_t		ndigits;
	int			point;
} CanonicalNumber;

/*
 * A member of an object, to be put in order.  The caller sets all but
 * "prefix", which canonical_sort_members makes of the name.
 */
typedef struct CanonicalMember
{
	uint64_t	prefix;
	const char *name;			/* valid UTF-8 without zero bytes */
	uint32_t	name_len;
	uint32_t	value;			/* the caller's: where its value is */
	uint32_t	entry;			/* the caller's */
} CanonicalMember;

/*
 * Members in order lie about in memory.  To ask for those that come soon makes
 * the writing of millions twice as fast.
 */
#ifdef __GNUC__
#define CANONICAL_FETCH(address) __builtin_prefetch(address)
#else
#define CANONICAL_FETCH(address) ((void) (address))
#endif
#define CANONICAL_FETCH_AHEAD 16

extern void canonical_init(CanonicalSink *sink,
						   void (*write) (void *ctx, const char *data, size_t len),
						   void *ctx);
extern void canonical_flush(CanonicalSink *sink);
extern void canonical_long_bytes(CanonicalSink *sink, const char *data, size_t len);
extern void canonical_char_escaped(CanonicalSink *sink, unsigned char c);
extern void canonical_string(CanonicalSink *sink, const char *utf8, size_t len);

extern void canonical_number_trim(CanonicalNumber *number);
extern bool canonical_number_is_jcs(const CanonicalNumber *number);
extern void canonical_number(CanonicalSink *sink, const CanonicalNumber *number);

/* canonical_order.c */
extern int	canonical_compare_names(const char *a, size_t alen,
									const char *b, size_t blen);
extern bool canonical_same_name(const CanonicalMember *a, const CanonicalMember *b);
extern size_t canonical_sort_space(size_t nmembers);
extern void canonical_sort_members(CanonicalMember *members, size_t nmembers,
								   CanonicalMember *scratch,
								   void (*tick) (void *ctx), void *ctx);

/* One byte of structure. */
static inline void
canonical_char(CanonicalSink *sink, char c)
{
	if (sink->used == CANONICAL_BUFFER_SIZE)
		canonical_flush(sink);
	sink->buffer[sink->used++] = c;
}

/* Bytes that are canonical already. */
static inline void
canonical_bytes(CanonicalSink *sink, const char *data, size_t len)
{
	if (len > CANONICAL_BUFFER_SIZE - sink->used)
		canonical_long_bytes(sink, data, len);
	else
	{
		memcpy(sink->buffer + sink->used, data, len);
		sink->used += len;
	}
}

#endif							/* IDEM_CANONICAL_H */
