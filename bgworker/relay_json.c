/*-------------------------------------------------------------------------
 *
 * relay_json.c
 *		The text of a jsonb, byte for byte as jsonb::text.
 *
 * The server's own printing looks at each character of a string by itself, and
 * knows no limit: a number like 1e131071 takes a few bytes in the table and
 * 131,072 in text.  It was the largest single cost of a row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "compat.h"
#include "relay_json.h"

#define EACH_BYTE(value)	(UINT64CONST(0x0101010101010101) * (value))
#define HIGH_BITS			EACH_BYTE(0x80)

/* Whether one of eight bytes is less than n, which is at most 128. */
static inline bool
has_less(uint64 word, uint64 n)
{
	return ((word - EACH_BYTE(n)) & ~word & HIGH_BITS) != 0;
}

static inline bool
has_byte(uint64 word, uint8 byte)
{
	return has_less(word ^ EACH_BYTE(byte), 1);
}

static inline bool
is_plain(char c)
{
	return (unsigned char) c >= ' ' && c != '"' && c != '\\';
}

/* How many characters from the start need no escape. */
static int
plain_length(const char *s, int len)
{
	int			i = 0;

	for (; i + 8 <= len; i += 8)
	{
		uint64		word;

		memcpy(&word, s + i, 8);
		if (has_less(word, ' ') || has_byte(word, '"') || has_byte(word, '\\'))
			break;
	}
	while (i < len && is_plain(s[i]))
		i++;
	return i;
}

static void
check_limit(StringInfo out, int more, int limit)
{
	if (out->len > limit - more)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("payload of an event is too large to be sent")));
}

static void
append_escape(StringInfo out, char c)
{
	switch (c)
	{
		case '\b':
			appendStringInfoString(out, "\\b");
			break;
		case '\f':
			appendStringInfoString(out, "\\f");
			break;
		case '\n':
			appendStringInfoString(out, "\\n");
			break;
		case '\r':
			appendStringInfoString(out, "\\r");
			break;
		case '\t':
			appendStringInfoString(out, "\\t");
			break;
		case '"':
		case '\\':
			appendStringInfoChar(out, '\\');
			appendStringInfoChar(out, c);
			break;
		default:
			appendStringInfo(out, "\\u%04x", (unsigned char) c);
	}
}

static void
append_string(StringInfo out, const char *s, int len)
{
	appendStringInfoChar(out, '"');
	while (len > 0)
	{
		int			plain = plain_length(s, len);

		appendBinaryStringInfo(out, s, plain);
		s += plain;
		len -= plain;
		if (len > 0)
		{
			append_escape(out, *s++);
			len--;
		}
	}
	appendStringInfoChar(out, '"');
}

static void
append_scalar(StringInfo out, const JsonbValue *v, int limit)
{
	switch (v->type)
	{
		case jbvNull:
			appendStringInfoString(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, v->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			appendStringInfoString(out, DatumGetCString(DirectFunctionCall1(numeric_out,
																			NumericGetDatum(v->val.numeric))));
			break;
		case jbvString:
			check_limit(out, v->val.string.len, limit);
			append_string(out, v->val.string.val, v->val.string.len);
			break;
		default:
			elog(ERROR, "unknown type of a jsonb value: %d", (int) v->type);
	}
	check_limit(out, 0, limit);
}

/*
 * Appends the text of a jsonb.  Raises an error when that would be longer than
 * the limit, in bytes.
 */
void
relay_json_text(StringInfo out, Jsonb *jb, int limit)
{
	JsonbIterator *it = JsonbIteratorInit(&jb->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	bool		scalar = false; /* all of it is one: an array that isn't written */
	bool		first = true;	/* no comma before what comes */

	/* the text of many small numbers is shorter than they are in the table */
	enlargeStringInfo(out, Min(VARSIZE(jb) + VARSIZE(jb) / 4, limit));
	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
	{
		bool		ends = token == WJB_END_ARRAY || token == WJB_END_OBJECT;

		if (!first && !ends)
			appendStringInfoString(out, ", ");
		first = false;
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				scalar = v.val.array.rawScalar;
				if (!scalar)
					appendStringInfoChar(out, '[');
				first = true;
				break;
			case WJB_END_ARRAY:
				if (!scalar)
					appendStringInfoChar(out, ']');
				break;
			case WJB_BEGIN_OBJECT:
				appendStringInfoChar(out, '{');
				first = true;
				break;
			case WJB_END_OBJECT:
				appendStringInfoChar(out, '}');
				break;
			case WJB_KEY:
				append_string(out, v.val.string.val, v.val.string.len);
				appendStringInfoString(out, ": ");
				first = true;	/* of its value */
				break;
			default:
				append_scalar(out, &v, limit);
		}
	}
}
