/*-------------------------------------------------------------------------
 *
 * canonical_text_ends.c
 *	  Where the containers of a JSON text end, in little memory.
 *
 * Who puts the members of an object in order has to step over their values
 * first, and a value that is nested 1,000 objects deep would be read over 1,000
 * times.  So the ends of containers are remembered:
 *
 * - of all in one stretch of text, the window.  It is all of a text that fits;
 *	 else it moves, to a container that fits, when something inside of that has
 *	 to be stepped over for the first time;
 * - of those that don't fit into a window.  There are few: at most 1,000, one
 *	 inside the other, for each length of a window.
 *
 * So whatever the text is, each of its bytes is read over a few times only.
 *
 *-------------------------------------------------------------------------
 */
#include "canonical_text_reader.h"

/*
 * The window has a place for each grain of text.  Only values of members are
 * asked for, and two containers that are such begin at least four bytes apart:
 * {"":{"":{
 */
static inline uint32_t *
place(CanonicalEnds *ends, uint32_t start)
{
	return &ends->ends[(start - ends->window_start) / CANONICAL_WINDOW_GRAIN];
}

/* The beginning: the window is all of a short text, and nothing of a long one. */
bool
canonical_ends_init(CanonicalEnds *ends, CanonicalReader *reader)
{
	size_t		len = (size_t) (reader->end - reader->text);

	ends->window_start = 0;
	ends->window_end = 0;
	ends->ends = NULL;
	ends->longs = NULL;
	ends->nlongs = 0;
	ends->longs_space = 0;
	ends->depth = 0;
	if (len > CANONICAL_WINDOW_SIZE)
		return true;
	ends->window_end = (uint32_t) len;
	ends->ends = ends->small_window;
	if (len > CANONICAL_SMALL_WINDOW)
		ends->ends = canonical_resize(reader, NULL,
									  (len / CANONICAL_WINDOW_GRAIN + 1) * sizeof(uint32_t));
	return ends->ends != NULL;
}

static bool
add_long(CanonicalEnds *ends, CanonicalReader *reader, uint32_t start, uint32_t end)
{
	if (ends->nlongs == ends->longs_space)
	{
		size_t		space = ends->longs_space == 0 ? 64 : 2 * ends->longs_space;
		void	   *longs = canonical_resize(reader, ends->longs,
											 space * sizeof(CanonicalLong));

		if (longs == NULL)
			return false;
		ends->longs = longs;
		ends->longs_space = space;
	}
	ends->longs[ends->nlongs].start = start;
	ends->longs[ends->nlongs].end = end;
	ends->nlongs++;
	return true;
}

/*
 * First pass: the innermost open container ends before "behind".  The caller
 * has put where it begins on top of "open", and takes it off by this.
 */
bool
canonical_ends_close(CanonicalEnds *ends, CanonicalReader *reader,
					 const char *behind)
{
	uint32_t	end = (uint32_t) (behind - reader->text);
	uint32_t	start = ends->open[--ends->depth];

	if (ends->window_end > 0)
	{
		if (ends->depth > 0 && reader->text[ends->open[ends->depth - 1]] == '{')
			*place(ends, start) = end;
		return true;
	}
	return end - start <= CANONICAL_WINDOW_SIZE || add_long(ends, reader, start, end);
}

/* Move heap[root] down to its place among the "n" of a heap. */
static void
sift_down(CanonicalLong *heap, size_t root, size_t n)
{
	CanonicalLong moving = heap[root];
	size_t		child;

	while ((child = 2 * root + 1) < n)
	{
		if (child + 1 < n && heap[child].start < heap[child + 1].start)
			child++;
		if (heap[child].start <= moving.start)
			break;
		heap[root] = heap[child];
		root = child;
	}
	heap[root] = moving;
}

/*
 * The first pass is over.  It gave the long containers in the order of their
 * ends; they are looked up by where they begin.
 */
void
canonical_ends_complete(CanonicalEnds *ends)
{
	CanonicalLong *longs = ends->longs;
	size_t		at;

	for (at = ends->nlongs / 2; at > 0; at--)
		sift_down(longs, at - 1, ends->nlongs);
	for (at = ends->nlongs; at > 1; at--)
	{
		CanonicalLong last = longs[at - 1];

		longs[at - 1] = longs[0];
		longs[0] = last;
		sift_down(longs, 0, at - 1);
	}
}

/* Where the container at "start" ends when it is long, else zero. */
static uint32_t
find_long(const CanonicalEnds *ends, uint32_t start)
{
	size_t		low = 0;
	size_t		high = ends->nlongs;

	while (low < high)
	{
		size_t		middle = low + (high - low) / 2;

		if (ends->longs[middle].start == start)
			return ends->longs[middle].end;
		if (ends->longs[middle].start < start)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

/* Is the container at "at" longer than a window? */
bool
canonical_ends_is_long(const CanonicalEnds *ends, const CanonicalReader *reader,
					   const char *at)
{
	return ends->nlongs > 0 &&
		find_long(ends, (uint32_t) (at - reader->text)) > 0;
}

/*
 * Read over the valid container at "at".  When "to_window", note what ends in
 * it.
 */
static const char *
read_over(CanonicalEnds *ends, const CanonicalReader *reader, const char *at,
		  bool to_window)
{
	size_t		depth = 0;
	bool		escaped;

	for (;;)
	{
		switch (*at)
		{
			case '"':
				at = canonical_skip_string(at, reader->end, &escaped);
				continue;
			case '{':
			case '[':
				ends->open[depth++] = (uint32_t) (at - reader->text);
				break;
			case '}':
			case ']':
				if (--depth == 0)
					return at + 1;
				if (to_window && reader->text[ends->open[depth - 1]] == '{')
					*place(ends, ends->open[depth]) = (uint32_t) (at + 1 - reader->text);
				break;
			default:
				break;
		}
		at++;
	}
}

/* Move the window to the valid container at "at", which fits. */
static bool
move_window(CanonicalEnds *ends, CanonicalReader *reader, const char *at)
{
	if (ends->ends == NULL)
	{
		ends->ends = canonical_resize(reader, NULL,
									  (CANONICAL_WINDOW_SIZE / CANONICAL_WINDOW_GRAIN + 1) * sizeof(uint32_t));
		if (ends->ends == NULL)
			return false;
	}
	ends->window_start = (uint32_t) (at - reader->text);
	ends->window_end = (uint32_t) (read_over(ends, reader, at, true) - reader->text);
	return true;
}

/*
 * Second pass: step over the valid container at "at", the value of a member of
 * the object at "object".
 */
const char *
canonical_ends_skip(CanonicalEnds *ends, CanonicalReader *reader, const char *at,
					const char *object, bool object_is_long)
{
	uint32_t	start = (uint32_t) (at - reader->text);
	uint32_t	end;

	if (object_is_long)
	{
		end = find_long(ends, start);
		return end > 0 ? reader->text + end : read_over(ends, reader, at, false);
	}
	if ((start < ends->window_start || start >= ends->window_end) &&
		!move_window(ends, reader, object))
		return NULL;
	return reader->text + *place(ends, start);
}

/* Give back the memory. */
void
canonical_ends_release(CanonicalEnds *ends, CanonicalReader *reader)
{
	if (ends->ends != NULL && ends->ends != ends->small_window)
		canonical_release(reader, ends->ends);
	if (ends->longs != NULL)
		canonical_release(reader, ends->longs);
}
