/*-------------------------------------------------------------------------
 *
 * canonical_text_reader.h
 *	  What the files that read JSON text share; for them only.
 *
 *	canonical_text.c		the two passes
 *	canonical_text_string.c	strings
 *	canonical_text_number.c	numbers
 *	canonical_text_ends.c	where containers end
 *
 * Functions that move along the text take where to begin and give what follows;
 * NULL means that "error" says why the text is refused.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_TEXT_READER_H
#define IDEM_CANONICAL_TEXT_READER_H

#include "canonical_text.h"

/* Ask for interrupts whenever this much was read. */
#define CANONICAL_TICK_EVERY 65536

/* What was read by the first pass is "valid" in the comments from then on. */
typedef struct CanonicalReader
{
	const char *text;
	const char *end;
	const char *next_tick;
	CanonicalSink *sink;
	CanonicalMode mode;
	const CanonicalTextHost *host;
	CanonicalTextError *error;
} CanonicalReader;

/* canonical_text_string.c */
extern const char *canonical_check_string(CanonicalReader *reader, const char *at);
extern const char *canonical_skip_string(const char *at, const char *end,
										 bool *escaped);
extern const char *canonical_write_string(CanonicalReader *reader, const char *at);
extern size_t canonical_unescape(const char *raw, size_t len, char *to);

/* canonical_text_number.c */
extern const char *canonical_check_number(CanonicalReader *reader, const char *at);
extern const char *canonical_write_number(CanonicalReader *reader, const char *at);

/* A container that is longer than a window: from its bracket to behind the other. */
typedef struct CanonicalLong
{
	uint32_t	start;
	uint32_t	end;
} CanonicalLong;

/* See canonical_text_ends.c. */
#define CANONICAL_WINDOW_SIZE 262144
#define CANONICAL_WINDOW_GRAIN 4
#define CANONICAL_SMALL_WINDOW 1024

typedef struct CanonicalEnds
{
	/* the window: by grains, where the container that begins there ends */
	uint32_t	window_start;
	uint32_t	window_end;
	uint32_t   *ends;

	/* containers that are longer than a window */
	CanonicalLong *longs;
	size_t		nlongs;
	size_t		longs_space;

	/* where the open containers begin, while reading over them */
	uint32_t	open[CANONICAL_MAX_DEPTH];
	size_t		depth;

	uint32_t	small_window[CANONICAL_SMALL_WINDOW / CANONICAL_WINDOW_GRAIN];
} CanonicalEnds;

extern bool canonical_ends_init(CanonicalEnds *ends, CanonicalReader *reader);
extern bool canonical_ends_close(CanonicalEnds *ends, CanonicalReader *reader,
								 const char *behind);
extern void canonical_ends_complete(CanonicalEnds *ends);
extern bool canonical_ends_is_long(const CanonicalEnds *ends,
								   const CanonicalReader *reader, const char *at);
extern const char *canonical_ends_skip(CanonicalEnds *ends,
									   CanonicalReader *reader, const char *at,
									   const char *object, bool object_is_long);
extern void canonical_ends_release(CanonicalEnds *ends, CanonicalReader *reader);

/* Say why the text is refused; false, for the caller to return. */
static inline bool
canonical_refuse(CanonicalReader *reader, CanonicalTextFault fault,
				 const char *at, size_t len)
{
	if (at >= reader->end)
	{
		fault = CANONICAL_TEXT_ENDS_EARLY;
		len = 0;
	}
	reader->error->fault = fault;
	reader->error->at = (size_t) (at - reader->text);
	reader->error->len = len;
	return false;
}

/* The same where the caller returns a position. */
static inline const char *
canonical_refuse_at(CanonicalReader *reader, CanonicalTextFault fault,
					const char *at, size_t len)
{
	(void) canonical_refuse(reader, fault, at, len);
	return NULL;
}

/* A block of memory; NULL with the fault noted. */
static inline void *
canonical_resize(CanonicalReader *reader, void *block, size_t size)
{
	block = reader->host->resize(reader->host->ctx, block, size);
	if (block == NULL)
		(void) canonical_refuse(reader, CANONICAL_TEXT_NO_MEMORY, reader->text, 0);
	return block;
}

static inline void
canonical_release(CanonicalReader *reader, void *block)
{
	reader->host->release(reader->host->ctx, block);
}

static inline void
canonical_tick(CanonicalReader *reader, const char *at)
{
	if (at >= reader->next_tick)
	{
		reader->host->tick(reader->host->ctx);
		reader->next_tick = reader->end - at > CANONICAL_TICK_EVERY ?
			at + CANONICAL_TICK_EVERY : reader->end;
	}
}

/* Behind the white space at "at". */
static inline const char *
canonical_skip_space(const char *at, const char *end)
{
	while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
		at++;
	return at;
}

#endif							/* IDEM_CANONICAL_TEXT_READER_H */
