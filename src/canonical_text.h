/*-------------------------------------------------------------------------
 *
 * canonical_text.h
 *	  Canonical form of JSON text, read strictly.
 *
 * Takes what RFC 8259 calls JSON text, in UTF-8, and refuses what parsers read
 * in different ways.  Uses nothing of the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_TEXT_H
#define IDEM_CANONICAL_TEXT_H

#include "canonical.h"

/* Longer text is refused, so that positions fit into 32 bits with a sign. */
#define CANONICAL_TEXT_MAX INT32_MAX

/* Members of the objects that are open at one time; each takes 32 bytes. */
#define CANONICAL_MEMBERS_MAX 16777216

/* What jsonb's numbers can hold: digits before and behind the decimal point. */
#define CANONICAL_WHOLE_DIGITS_MAX 131072
#define CANONICAL_FRACTION_DIGITS_MAX 16383

/* Why a text was refused. */
typedef enum CanonicalTextFault
{
	CANONICAL_TEXT_FINE,
	CANONICAL_TEXT_TOO_LONG,	/* more than CANONICAL_TEXT_MAX bytes */
	CANONICAL_TEXT_BYTE_ORDER_MARK,
	CANONICAL_TEXT_ENDS_EARLY,
	CANONICAL_TEXT_NO_VALUE,	/* a value was due, this is none */
	CANONICAL_TEXT_NO_NAME,		/* a member's name was due */
	CANONICAL_TEXT_NO_COLON,
	CANONICAL_TEXT_NO_COMMA,	/* neither comma nor the end of the container */
	CANONICAL_TEXT_GOES_ON,		/* something after the value */
	CANONICAL_TEXT_TOO_DEEP,	/* more than CANONICAL_MAX_DEPTH levels */
	CANONICAL_TEXT_CONTROL,		/* a control character that is not escaped */
	CANONICAL_TEXT_ESCAPE,		/* no such escape */
	CANONICAL_TEXT_NUL,			/* \u0000, which jsonb can't hold */
	CANONICAL_TEXT_SURROGATE,	/* a surrogate without its other half */
	CANONICAL_TEXT_UTF8,		/* invalid UTF-8 */
	CANONICAL_TEXT_NUMBER,		/* not written as JSON writes numbers */
	CANONICAL_TEXT_RANGE,		/* a number that jsonb can't hold */
	CANONICAL_TEXT_JCS,			/* a number that mode jcs refuses */
	CANONICAL_TEXT_DUPLICATE,	/* a name for the second time in one object */
	CANONICAL_TEXT_TOO_MANY_MEMBERS,	/* in the objects open at one time */
	CANONICAL_TEXT_NO_MEMORY	/* "resize" gave NULL */
} CanonicalTextFault;

/*
 * Where it was found: the "len" bytes from "at" (zero: at the end of the text).
 */
typedef struct CanonicalTextError
{
	CanonicalTextFault fault;
	size_t		at;				/* offset in bytes, from zero */
	size_t		len;
} CanonicalTextError;

/*
 * What the reader needs of its surroundings.  Each may leave by a jump; what
 * "resize" gave and "release" did not take back is then the caller's to free.
 */
typedef struct CanonicalTextHost
{
	/* gives a block of "size" bytes with the content of "block" (or NULL) */
	void	   *(*resize) (void *ctx, void *block, size_t size);
	void		(*release) (void *ctx, void *block);
	/* called now and then, to look for interrupts */
	void		(*tick) (void *ctx);
	void	   *ctx;
} CanonicalTextHost;

extern bool canonical_text(CanonicalSink *sink, const char *utf8, size_t len,
						   CanonicalMode mode, const CanonicalTextHost *host,
						   CanonicalTextError *error);

#endif							/* IDEM_CANONICAL_TEXT_H */
