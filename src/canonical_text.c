/*-------------------------------------------------------------------------
 *
 * canonical_text.c
 *	  Canonical form of JSON text, read strictly.
 *
 * Two passes.  The first checks all of the text but for repeated names.  The
 * second writes: at an object it collects where its members are, puts them in
 * order and writes one after another, their values by recursion.  So memory
 * holds the members of the objects that are open, never the text's values.
 *
 *-------------------------------------------------------------------------
 */
#include "canonical_text_reader.h"

/* Members that fit without allocating. */
#define SMALL_MEMBERS 32

typedef struct TextPasses
{
	CanonicalReader reader;
	CanonicalEnds ends;

	/* members of the open objects, outer ones first */
	CanonicalMember *members;
	size_t		nmembers;
	size_t		members_space;
	CanonicalMember small_members[SMALL_MEMBERS];
} TextPasses;

static const char *write_value(TextPasses *passes, const char *at);

/*
 * First pass
 */

static const char *
check_literal(CanonicalReader *reader, const char *at, const char *literal,
			  size_t len)
{
	size_t		left = (size_t) (reader->end - at);

	if (left >= len && memcmp(at, literal, len) == 0)
		return at + len;
	/* what is missing at the end of the text is told so */
	if (left < len && memcmp(at, literal, left) == 0)
		at = reader->end;
	return canonical_refuse_at(reader, CANONICAL_TEXT_NO_VALUE, at, 1);
}

/* Check a scalar. */
static const char *
check_scalar(CanonicalReader *reader, const char *at)
{
	switch (*at)
	{
		case '"':
			return canonical_check_string(reader, at);
		case 't':
			return check_literal(reader, at, "true", 4);
		case 'f':
			return check_literal(reader, at, "false", 5);
		case 'n':
			return check_literal(reader, at, "null", 4);
		default:
			if (*at == '-' || (*at >= '0' && *at <= '9'))
				return canonical_check_number(reader, at);
			return canonical_refuse_at(reader, CANONICAL_TEXT_NO_VALUE, at, 1);
	}
}

/* Check a member's name and the colon.  Gives where its value begins. */
static const char *
check_name(CanonicalReader *reader, const char *at)
{
	if (at >= reader->end || *at != '"')
		return canonical_refuse_at(reader, CANONICAL_TEXT_NO_NAME, at, 1);
	at = canonical_check_string(reader, at);
	if (at == NULL)
		return NULL;
	at = canonical_skip_space(at, reader->end);
	if (at >= reader->end || *at != ':')
		return canonical_refuse_at(reader, CANONICAL_TEXT_NO_COLON, at, 1);
	return canonical_skip_space(at + 1, reader->end);
}

/* The bracket of the innermost open container. */
static inline char
innermost(const TextPasses *passes)
{
	return passes->reader.text[passes->ends.open[passes->ends.depth - 1]];
}

/*
 * Check what follows a value, and close the containers that end there.  Gives
 * where the next value begins, or what follows the outermost container.
 */
static const char *
check_after_value(TextPasses *passes, const char *at)
{
	CanonicalReader *reader = &passes->reader;

	while (passes->ends.depth > 0)
	{
		char		bracket = innermost(passes);

		at = canonical_skip_space(at, reader->end);
		if (at < reader->end && *at == ',')
		{
			at = canonical_skip_space(at + 1, reader->end);
			return bracket == '{' ? check_name(reader, at) : at;
		}
		if (at >= reader->end || *at != (bracket == '{' ? '}' : ']'))
			return canonical_refuse_at(reader, CANONICAL_TEXT_NO_COMMA, at, 1);
		at++;
		if (!canonical_ends_close(&passes->ends, reader, at))
			return NULL;
	}
	return at;
}

/*
 * Check the beginning of the container at "at", and all of it when it is
 * empty.  Gives where the first value begins, or what follows the container.
 */
static const char *
check_opening(TextPasses *passes, const char *at, bool *empty)
{
	CanonicalReader *reader = &passes->reader;
	CanonicalEnds *ends = &passes->ends;
	char		bracket = *at;

	if (ends->depth == CANONICAL_MAX_DEPTH)
		return canonical_refuse_at(reader, CANONICAL_TEXT_TOO_DEEP, at, 1);
	ends->open[ends->depth++] = (uint32_t) (at - reader->text);
	at = canonical_skip_space(at + 1, reader->end);
	*empty = at < reader->end && *at == (bracket == '{' ? '}' : ']');
	if (*empty)
		return canonical_ends_close(ends, reader, at + 1) ? at + 1 : NULL;
	return bracket == '{' ? check_name(reader, at) : at;
}

/* Check all of the text but for repeated names. */
static bool
check_text(TextPasses *passes)
{
	CanonicalReader *reader = &passes->reader;
	const char *end = reader->end;
	const char *at = reader->text;
	bool		value_ended;

	if (end - at >= 3 && memcmp(at, "\xEF\xBB\xBF", 3) == 0)
		return canonical_refuse(reader, CANONICAL_TEXT_BYTE_ORDER_MARK, at, 3);
	at = canonical_skip_space(at, end);
	do
	{
		canonical_tick(reader, at);
		if (at >= end)
			return canonical_refuse(reader, CANONICAL_TEXT_ENDS_EARLY, end, 0);
		if (*at == '{' || *at == '[')
			at = check_opening(passes, at, &value_ended);
		else
		{
			at = check_scalar(reader, at);
			value_ended = true;
		}
		if (at != NULL && value_ended)
			at = check_after_value(passes, at);
		if (at == NULL)
			return false;
	} while (passes->ends.depth > 0);

	at = canonical_skip_space(at, end);
	return at == end || canonical_refuse(reader, CANONICAL_TEXT_GOES_ON, at, 1);
}

/*
 * Second pass, over what is valid
 */

/* Step over the value of a member of the object at "object". */
static const char *
skip_member_value(TextPasses *passes, const char *at, const char *object,
				  bool object_is_long)
{
	bool		escaped;

	switch (*at)
	{
		case '"':
			return canonical_skip_string(at, passes->reader.end, &escaped);
		case '{':
		case '[':
			return canonical_ends_skip(&passes->ends, &passes->reader, at,
									   object, object_is_long);
		default:
			while (*at != ',' && *at != '}' && *at != ' ' && *at != '\n' &&
				   *at != '\r' && *at != '\t')
				at++;
			return at;
	}
}

/* Make room for more members. */
static bool
more_members(TextPasses *passes, const char *at)
{
	bool		were_small = passes->members == passes->small_members;
	size_t		space = 2 * passes->members_space;
	CanonicalMember *members;

	if (space > CANONICAL_MEMBERS_MAX)
		return canonical_refuse(&passes->reader, CANONICAL_TEXT_TOO_MANY_MEMBERS,
								at, 1);
	members = canonical_resize(&passes->reader, were_small ? NULL : passes->members,
							   space * sizeof(CanonicalMember));
	if (members == NULL)
		return false;
	if (were_small)
		memcpy(members, passes->small_members, sizeof(passes->small_members));
	passes->members = members;
	passes->members_space = space;
	return true;
}

/*
 * Add a member, with its name as it is written.  "entry" tells where that is,
 * and in its lowest bit whether it has escapes.
 */
static bool
add_member(TextPasses *passes, const char *name, size_t len, bool escaped,
		   const char *value)
{
	const char *text = passes->reader.text;
	CanonicalMember *member;

	if (passes->nmembers == passes->members_space && !more_members(passes, name))
		return false;
	member = &passes->members[passes->nmembers++];
	member->name = name;
	member->name_len = (uint32_t) len;
	member->value = (uint32_t) (value - text);
	member->entry = (uint32_t) (name - text) << 1 | escaped;
	return true;
}

/*
 * Collect the members of the object at "object".  Adds the lengths of names
 * with escapes to "*escaped_len".
 */
static const char *
collect_members(TextPasses *passes, const char *object, size_t *escaped_len)
{
	CanonicalReader *reader = &passes->reader;
	const char *end = reader->end;
	const char *at = canonical_skip_space(object + 1, end);
	bool		is_long = canonical_ends_is_long(&passes->ends, reader, object);

	while (*at != '}')
	{
		const char *name = at + 1;
		bool		escaped = false;
		size_t		len;

		at = canonical_skip_string(at, end, &escaped);
		len = (size_t) (at - name) - 1;
		at = canonical_skip_space(at, end);
		at = canonical_skip_space(at + 1, end);
		if (!add_member(passes, name, len, escaped, at))
			return NULL;
		if (escaped)
			*escaped_len += len;
		at = skip_member_value(passes, at, object, is_long);
		if (at == NULL)
			return NULL;
		canonical_tick(reader, at);
		at = canonical_skip_space(at, end);
		if (*at == ',')
			at = canonical_skip_space(at + 1, end);
	}
	return at + 1;
}

/*
 * Unescape the names among the members from "first" on that have escapes, into
 * a block that "*block" is then.  False without memory.
 */
static bool
unescape_names(TextPasses *passes, size_t first, size_t escaped_len, char **block)
{
	char	   *space = canonical_resize(&passes->reader, NULL, escaped_len);
	size_t		i;

	*block = space;
	if (space == NULL)
		return false;
	for (i = first; i < passes->nmembers; i++)
	{
		CanonicalMember *member = &passes->members[i];

		if ((member->entry & 1) == 0)
			continue;
		member->name_len = (uint32_t) canonical_unescape(member->name,
														 member->name_len, space);
		member->name = space;
		space += member->name_len;
	}
	return true;
}

/*
 * Put the members from "first" on in order, and refuse a repeated name: the
 * second of the two, which stand next to each other then.
 */
static bool
sort_members(TextPasses *passes, size_t first)
{
	const CanonicalTextHost *host = passes->reader.host;
	CanonicalMember *member = passes->members + first;
	size_t		n = passes->nmembers - first;
	size_t		space = canonical_sort_space(n) * sizeof(CanonicalMember);
	CanonicalMember *scratch = NULL;
	size_t		i;

	if (space > 0)
	{
		scratch = canonical_resize(&passes->reader, NULL, space);
		if (scratch == NULL)
			return false;
	}
	canonical_sort_members(member, n, scratch, host->tick, host->ctx);
	if (scratch != NULL)
		canonical_release(&passes->reader, scratch);
	for (i = 1; i < n; i++)
	{
		if (canonical_same_name(&member[i - 1], &member[i]))
			return canonical_refuse(&passes->reader, CANONICAL_TEXT_DUPLICATE,
									passes->reader.text + (member[i].entry >> 1) - 1, 1);
	}
	return true;
}

/* Write the members from "first" on, which are in order. */
static bool
write_members(TextPasses *passes, size_t first)
{
	CanonicalSink *sink = passes->reader.sink;
	size_t		i;

	canonical_char(sink, '{');
	for (i = first; i < passes->nmembers; i++)
	{
		/* looked up each time: values move the array */
		const CanonicalMember *member = &passes->members[i];

		if (i + CANONICAL_FETCH_AHEAD < passes->nmembers)
			CANONICAL_FETCH(member[CANONICAL_FETCH_AHEAD].name);
		if (i > first)
			canonical_char(sink, ',');
		canonical_string(sink, member->name, member->name_len);
		canonical_char(sink, ':');
		if (write_value(passes, passes->reader.text + member->value) == NULL)
			return false;
	}
	canonical_char(sink, '}');
	return true;
}

/* Write the object at "at". */
static const char *
write_object(TextPasses *passes, const char *at)
{
	size_t		first = passes->nmembers;
	size_t		escaped_len = 0;
	char	   *names = NULL;
	const char *behind = collect_members(passes, at, &escaped_len);

	if (behind == NULL ||
		(escaped_len > 0 && !unescape_names(passes, first, escaped_len, &names)))
		return NULL;
	if (!sort_members(passes, first) || !write_members(passes, first))
		behind = NULL;
	passes->nmembers = first;
	if (names != NULL)
		canonical_release(&passes->reader, names);
	return behind;
}

/* Write the array at "at". */
static const char *
write_array(TextPasses *passes, const char *at)
{
	CanonicalSink *sink = passes->reader.sink;
	const char *end = passes->reader.end;

	canonical_char(sink, '[');
	at = canonical_skip_space(at + 1, end);
	while (*at != ']')
	{
		at = write_value(passes, at);
		if (at == NULL)
			return NULL;
		at = canonical_skip_space(at, end);
		if (*at == ',')
		{
			canonical_char(sink, ',');
			at = canonical_skip_space(at + 1, end);
		}
	}
	canonical_char(sink, ']');
	return at + 1;
}

/* Write the value at "at". */
static const char *
write_value(TextPasses *passes, const char *at)
{
	CanonicalReader *reader = &passes->reader;

	switch (*at)
	{
		case '{':
			return write_object(passes, at);
		case '[':
			return write_array(passes, at);
		case '"':
			return canonical_write_string(reader, at);
		case 't':
		case 'n':
			canonical_bytes(reader->sink, at, 4);
			return at + 4;
		case 'f':
			canonical_bytes(reader->sink, at, 5);
			return at + 5;
		default:
			return canonical_write_number(reader, at);
	}
}

/*
 * Write the canonical form of a JSON text.  On false, "error" says what is
 * wrong; the sink may have got a part of the text then.  The caller flushes the
 * sink.
 *
 *	utf8	the text; what is not valid UTF-8 is refused
 *	host	where memory comes from
 *
 * Takes some 8 kB of stack, and less than 300 bytes more for each level.
 */
bool
canonical_text(CanonicalSink *sink, const char *utf8, size_t len,
			   CanonicalMode mode, const CanonicalTextHost *host,
			   CanonicalTextError *error)
{
	TextPasses	passes;
	CanonicalReader *reader = &passes.reader;
	bool		done;

	error->fault = CANONICAL_TEXT_FINE;
	error->at = error->len = 0;
	if (len > CANONICAL_TEXT_MAX)
	{
		error->fault = CANONICAL_TEXT_TOO_LONG;
		return false;
	}
	reader->text = utf8;
	reader->end = utf8 + len;
	reader->next_tick = utf8;
	reader->sink = sink;
	reader->mode = mode;
	reader->host = host;
	reader->error = error;
	passes.members = passes.small_members;
	passes.nmembers = 0;
	passes.members_space = SMALL_MEMBERS;

	done = canonical_ends_init(&passes.ends, reader) && check_text(&passes);
	if (done)
	{
		canonical_ends_complete(&passes.ends);
		reader->next_tick = utf8;
		done = write_value(&passes, canonical_skip_space(utf8, reader->end)) != NULL;
	}
	canonical_ends_release(&passes.ends, reader);
	if (passes.members != passes.small_members)
		canonical_release(reader, passes.members);
	return done;
}
