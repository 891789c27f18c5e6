/*-------------------------------------------------------------------------
 *
 * idem_select.c
 *		Which part of a JSON value counts: JSON Pointers and the pruned copy.
 *
 * A selection is made of pointers (RFC 6901) and gives a copy of the value with
 * everything else cut out.  What is left keeps its place and its type: objects
 * lose members, arrays lose nothing, since an element that moved could be taken
 * for another.  The README has the rules as a table of cases, which is a test.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "compat.h"
#include "idem_select.h"

/*
 * The pointers that lead into a value.  All of them have come the same number
 * of tokens far, one for each level of the value.
 */
typedef struct Reach
{
	int			n;
	const SelectPointer **pointers;
} Reach;

/* What is known of a value on the way down. */
typedef struct Place
{
	Reach		include;
	Reach		exclude;
	int			depth;			/* tokens behind us */
	bool		selected;		/* an include ended here or above */
	bool		kept;			/* an element of an array that "*" crosses */
} Place;

typedef struct SelectWalk
{
	bool		any;			/* a value was selected and not excluded */
} SelectWalk;

static bool select_value(SelectWalk *walk, const JsonbValue *value,
						 const Place *place, JsonbValue *result);

/*
 * Pointers
 */

static void
bad_pointer(const SelectPointer *pointer, const char *argument, int at)
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
element_index(const SelectToken *token)
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
take_token(const SelectPointer *pointer, const char *argument, int at, char *name,
		   SelectToken *token)
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
parse_pointer(SelectPointer *pointer, const char *argument)
{
	char	   *names;
	int			slashes = 0;

	for (int at = 0; at < pointer->len; at++)
		slashes += pointer->text[at] == '/';
	pointer->tokens = palloc_extended(sizeof(SelectToken) * (slashes + 1), MCXT_ALLOC_HUGE);
	pointer->ntokens = 0;

	if (pointer->len > 0 && pointer->text[0] != '/')
	{
		SelectToken plain = {pointer->text, pointer->len, -1, false};

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
SelectList *
select_list(ArrayType *array, const char *argument)
{
	SelectList *list = palloc(sizeof(SelectList));
	Datum	   *elements;
	bool	   *nulls;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an array of one dimension", argument)));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &list->n);
	list->pointers = palloc(sizeof(SelectPointer) * Max(list->n, 1));
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
static bool
list_has(const SelectList *list, const SelectPointer *pointer)
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
 * Whether a pointer hits anything
 */

/* Whether the rest of a pointer, from its token "at", leads to a value. */
static bool
pointer_hits(const SelectPointer *pointer, int at, const JsonbValue *value)
{
	const SelectToken *token = &pointer->tokens[at];
	JsonbContainer *container;
	JsonbIterator *it;
	JsonbIteratorToken what;
	JsonbValue	child;
	JsonbValue *found = NULL;

	check_stack_depth();
	if (at == pointer->ntokens)
		return true;
	if (value->type != jbvBinary)
		return false;
	container = value->val.binary.data;

	if (token->all)
	{
		it = JsonbIteratorInit(container);
		while ((what = JsonbIteratorNext(&it, &child, true)) != WJB_DONE)
		{
			CHECK_FOR_INTERRUPTS();
			if ((what == WJB_ELEM || what == WJB_VALUE) && pointer_hits(pointer, at + 1, &child))
				return true;
		}
		return false;
	}
	if (JsonContainerIsObject(container))
		found = getKeyJsonValueFromContainer(container, token->name, token->len, NULL);
	else if (token->index >= 0)
		found = getIthJsonbValueFromContainer(container, token->index);
	return found != NULL && pointer_hits(pointer, at + 1, found);
}

/* Each include must hit something, unless it is optional. */
static void
check_include(const SelectList *include, const SelectList *optional, const JsonbValue *root)
{
	for (int i = 0; i < include->n; i++)
	{
		const SelectPointer *pointer = &include->pointers[i];

		CHECK_FOR_INTERRUPTS();
		if (!list_has(optional, pointer) && !pointer_hits(pointer, 0, root))
			ereport(ERROR,
					(errcode(ERRCODE_NO_SQL_JSON_ITEM),
					 errmsg("include \"%.*s\" selects nothing in the body", pointer->len, pointer->text),
					 errhint("Refuse a request without it, or name it in optional as well if it may be missing.")));
	}
}

/*
 * Raises 22023 when optional names what include does not: that is a slip of the
 * pen, and would go unnoticed.
 */
void
select_check_optional(const SelectList *include, const SelectList *optional)
{
	for (int i = 0; optional != NULL && i < optional->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!list_has(include, &optional->pointers[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("optional \"%.*s\" is not in include",
							optional->pointers[i].len, optional->pointers[i].text),
					 errhint("The list optional says which pointers of the list include may select nothing; write them there in the same way.")));
	}
}

/*
 * The pruned copy
 */

/* Whether one of the pointers ends here. */
static bool
reach_ends(const Reach *reach, int depth)
{
	for (int i = 0; i < reach->n; i++)
		if (reach->pointers[i]->ntokens == depth)
			return true;
	return false;
}

/* Room for as many pointers as lead into the value above. */
static Reach
reach_below(const Reach *above)
{
	Reach		reach = {0, palloc(sizeof(SelectPointer *) * Max(above->n, 1))};

	return reach;
}

/*
 * Which pointers lead on into a child: the member "name", or the element
 * "index" when there is no name.
 */
static void
reach_into(const Reach *above, int depth, const JsonbValue *name, int index, Reach *below)
{
	below->n = 0;
	for (int i = 0; i < above->n; i++)
	{
		const SelectToken *token = &above->pointers[i]->tokens[depth];

		if (above->pointers[i]->ntokens == depth)
			continue;
		if (token->all ||
			(name == NULL ? token->index == index :
			 token->len == name->val.string.len &&
			 memcmp(token->name, name->val.string.val, token->len) == 0))
			below->pointers[below->n++] = above->pointers[i];
	}
}

/* What a child begins with; reach_into fills in the rest. */
static Place
place_below(const Place *place)
{
	Place		below;

	below.include = reach_below(&place->include);
	below.exclude = reach_below(&place->exclude);
	below.depth = place->depth + 1;
	below.selected = place->selected;
	below.kept = false;
	return below;
}

static void
place_free(Place *place)
{
	pfree(place->include.pointers);
	pfree(place->exclude.pointers);
}

/*
 * An object keeps the members in which something is selected.  It stays without
 * any when it is itself selected or kept.
 */
static bool
select_object(SelectWalk *walk, JsonbContainer *container, const Place *place, JsonbValue *result)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	Place		below = place_below(place);
	JsonbValue	begin;
	JsonbValue	name;
	JsonbValue	value;
	JsonbPair  *pairs;
	int			npairs = 0;

	(void) JsonbIteratorNext(&it, &begin, true);
	pairs = MemoryContextAllocHuge(CurrentMemoryContext,
								   sizeof(JsonbPair) * Max((Size) begin.val.object.nPairs, 1));
	while (JsonbIteratorNext(&it, &name, true) == WJB_KEY)
	{
		CHECK_FOR_INTERRUPTS();
		(void) JsonbIteratorNext(&it, &value, true);
		reach_into(&place->include, place->depth, &name, -1, &below.include);
		reach_into(&place->exclude, place->depth, &name, -1, &below.exclude);
		if (!select_value(walk, &value, &below, &pairs[npairs].value))
			continue;
		pairs[npairs].key = name;
		pairs[npairs].order = npairs;
		npairs++;
	}
	place_free(&below);

	if (place->selected && begin.val.object.nPairs == 0)
		walk->any = true;
	result->type = jbvObject;
	result->val.object.nPairs = npairs;
	result->val.object.pairs = pairs;
	return npairs > 0 || place->selected || place->kept;
}

/* How the included pointers that lead into an array go on: by "*", by an index. */
static void
array_tokens(const Place *place, bool *all, bool *by_index)
{
	*all = *by_index = false;
	for (int i = 0; i < place->include.n; i++)
	{
		const SelectPointer *pointer = place->include.pointers[i];

		if (pointer->ntokens == place->depth)
			continue;
		*all |= pointer->tokens[place->depth].all;
		*by_index |= pointer->tokens[place->depth].index >= 0;
	}
}

/*
 * An array keeps its length: null stands for an element of which nothing is
 * left.  Where "*" crosses it, each element is kept: an object without its
 * members at least, and a scalar, in which nothing can be cut, as it is.  So it
 * is with arrays inside that array, unless pointers choose among their elements.
 */
static bool
select_array(SelectWalk *walk, JsonbContainer *container, const Place *place, JsonbValue *result)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	Place		below = place_below(place);
	JsonbValue	begin;
	JsonbValue	element;
	JsonbValue *elements;
	int			nelements = 0;
	bool		all;
	bool		by_index;
	bool		left = false;

	array_tokens(place, &all, &by_index);
	below.kept = all || (place->kept && !by_index);

	(void) JsonbIteratorNext(&it, &begin, true);
	elements = MemoryContextAllocHuge(CurrentMemoryContext,
									  sizeof(JsonbValue) * Max((Size) begin.val.array.nElems, 1));
	while (JsonbIteratorNext(&it, &element, true) == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		reach_into(&place->include, place->depth, NULL, nelements, &below.include);
		reach_into(&place->exclude, place->depth, NULL, nelements, &below.exclude);
		if (select_value(walk, &element, &below, &elements[nelements]))
			left = true;
		else
			elements[nelements].type = jbvNull;
		nelements++;
	}
	place_free(&below);

	if (place->selected && nelements == 0)
		walk->any = true;
	result->type = jbvArray;
	result->val.array.nElems = nelements;
	result->val.array.elems = elements;
	result->val.array.rawScalar = false;
	return left || all || place->selected || place->kept;
}

/*
 * What is left of a value; false: nothing.  An exclude that ends here wins over
 * all else.
 */
static bool
select_value(SelectWalk *walk, const JsonbValue *value, const Place *above, JsonbValue *result)
{
	Place		place = *above;

	check_stack_depth();
	if (reach_ends(&place.exclude, place.depth))
		return false;
	if (reach_ends(&place.include, place.depth))
		place.selected = true;
	if (!place.selected && !place.kept && place.include.n == 0)
		return false;

	if (value->type == jbvBinary)
	{
		JsonbContainer *container = value->val.binary.data;

		return JsonContainerIsObject(container) ?
			select_object(walk, container, &place, result) :
			select_array(walk, container, &place, result);
	}
	if (place.selected)
		walk->any = true;
	*result = *value;
	return place.selected || place.kept;
}

/* All pointers of a list, or none. */
static Reach
reach_all(const SelectList *list)
{
	Reach		reach = {list == NULL ? 0 : list->n, NULL};

	reach.pointers = palloc(sizeof(SelectPointer *) * Max(reach.n, 1));
	for (int i = 0; i < reach.n; i++)
		reach.pointers[i] = &list->pointers[i];
	return reach;
}

/*
 * The part of a value that counts.
 *
 *	include		what is selected; NULL: all of it
 *	exclude		what is cut out of that; NULL: nothing
 *	optional	which pointers of include may hit nothing; NULL: none
 *
 * Raises 22035 (no_sql_json_item) when an include hits nothing, or when nothing at
 * all is left.
 */
Jsonb *
select_part(Jsonb *body, const SelectList *include,
			const SelectList *exclude, const SelectList *optional)
{
	SelectWalk	walk = {false};
	Place		place;
	JsonbValue	root;
	JsonbValue	part;

	if (JB_ROOT_IS_SCALAR(body))
		(void) JsonbExtractScalar(&body->root, &root);
	else
	{
		root.type = jbvBinary;
		root.val.binary.data = &body->root;
		root.val.binary.len = VARSIZE(body) - VARHDRSZ;
	}
	if (include != NULL)
		check_include(include, optional, &root);

	place.include = reach_all(include);
	place.exclude = reach_all(exclude);
	place.depth = 0;
	place.selected = include == NULL;
	place.kept = false;
	if (!select_value(&walk, &root, &place, &part) || !walk.any)
		ereport(ERROR,
				(errcode(ERRCODE_NO_SQL_JSON_ITEM),
				 errmsg("nothing in the body is selected"),
				 errdetail("No value is left that include selects and exclude does not take out."),
				 errhint("A hash that says nothing of the body would make different requests one.")));
	return JsonbValueToJsonb(&part);
}
