/*-------------------------------------------------------------------------
 *
 * idem_pointer.c
 *		JSON Pointers (RFC 6901), with "*" for all.
 *
 * What doesn't begin with a slash is no pointer but the plain name of a member
 * at the top level.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"

#include "compat.h"
#include "idem_pointer.h"

static void
bad_pointer(const JsonPointer *pointer, const char *argument, int at)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid JSON pointer in %s: \"%.*s\"", argument, pointer->len, pointer->text),
			 errdetail("The \"~\" at byte %d is not followed by 0 or 1.", at + 1),
			 errhint("In a pointer \"~\" is written ~0 and \"/\" is written ~1. A name of the top level may also be given as it is, without a \"/\" before it.")));
}

/*
 * The number of an element that a token names (RFC 6901, section 4): digits
 * without a leading zero.  -1 when it names none; "-", the element after the
 * last, never exists.
 */
static int
element_index(const JsonPointerToken *token)
{
	int64		index = 0;

	if (token->len == 0 || (token->len > 1 && token->name[0] == '0'))
		return -1;
	for (int i = 0; i < token->len; i++)
	{
		if (token->name[i] < '0' || token->name[i] > '9')
			return -1;
		index = index * 10 + (token->name[i] - '0');
		if (index > PG_INT32_MAX)
			return -1;
	}
	return (int) index;
}

/*
 * Takes one token out of a pointer, from its byte "at" up to a slash or the
 * end, and gives where it ended.  Each escape is undone once, left to right,
 * so that ~01 is ~1 and not a slash.  There is room for the name at "name".
 */
static int
take_token(const JsonPointer *pointer, const char *argument, int at, char *name,
		   JsonPointerToken *token)
{
	int			len = 0;

	for (; at < pointer->len && pointer->text[at] != '/'; at++)
	{
		if (pointer->text[at] != '~')
		{
			name[len++] = pointer->text[at];
			continue;
		}
		if (at + 1 == pointer->len || (pointer->text[at + 1] != '0' && pointer->text[at + 1] != '1'))
			bad_pointer(pointer, argument, at);
		name[len++] = pointer->text[++at] == '0' ? '~' : '/';
	}
	token->name = name;
	token->len = len;
	token->index = element_index(token);
	token->all = len == 1 && name[0] == '*';
	return at;
}

/*
 * Takes a pointer apart.  What is not empty and begins with no slash is the name
 * of a member at the top level, as it stands: no escapes, no "*", no index.
 */
static void
parse_pointer(JsonPointer *pointer, const char *argument)
{
	char	   *names;
	int			slashes = 0;

	for (int at = 0; at < pointer->len; at++)
		slashes += pointer->text[at] == '/';
	pointer->tokens = palloc_extended(sizeof(JsonPointerToken) * (slashes + 1), MCXT_ALLOC_HUGE);
	pointer->ntokens = 0;

	if (pointer->len > 0 && pointer->text[0] != '/')
	{
		JsonPointerToken plain = {pointer->text, pointer->len, -1, false};

		pointer->tokens[pointer->ntokens++] = plain;
		return;
	}
	/* A name is never longer than it is written. */
	names = palloc(Max(pointer->len, 1));
	for (int at = 0; at < pointer->len;)
		at = take_token(pointer, argument, at + 1, names + at, &pointer->tokens[pointer->ntokens++]);
}

/*
 * The pointers of an array argument.  Raises 22004 when one is NULL, 22023 when
 * one is malformed or the array has more than one dimension.
 */
JsonPointerList *
pointer_list(ArrayType *array, const char *argument)
{
	JsonPointerList *list = palloc(sizeof(JsonPointerList));
	Datum	   *elements;
	bool	   *nulls;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an array of one dimension", argument)));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &list->n);
	list->pointers = palloc(sizeof(JsonPointer) * Max(list->n, 1));
	for (int i = 0; i < list->n; i++)
	{
		text	   *element;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not contain null", argument)));
		element = DatumGetTextPP(elements[i]);
		list->pointers[i].text = VARDATA_ANY(element);
		list->pointers[i].len = VARSIZE_ANY_EXHDR(element);
		parse_pointer(&list->pointers[i], argument);
	}
	return list;
}

/* Whether a list has a pointer, written the same way. */
bool
pointer_list_has(const JsonPointerList *list, const JsonPointer *pointer)
{
	if (list == NULL)
		return false;
	for (int i = 0; i < list->n; i++)
		if (list->pointers[i].len == pointer->len &&
			memcmp(list->pointers[i].text, pointer->text, pointer->len) == 0)
			return true;
	return false;
}

/*
 * Raises 22023 when optional names what include does not: that is a slip of the
 * pen, and would go unnoticed.
 */
void
pointer_list_check_optional(const JsonPointerList *include, const JsonPointerList *optional)
{
	for (int i = 0; optional != NULL && i < optional->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!pointer_list_has(include, &optional->pointers[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("optional \"%.*s\" is not in include",
							optional->pointers[i].len, optional->pointers[i].text),
					 errhint("The list optional says which pointers of the list include may select nothing; write them there in the same way.")));
	}
}
