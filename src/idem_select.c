/*-------------------------------------------------------------------------
 *
 * idem_select.c
 *		Which part of a JSON value counts: the pruned copy.
 *
 * A selection is made of pointers (RFC 6901) and gives a copy of the value with
 * everything else cut out.  What is left keeps its place and its type: objects
 * lose members, arrays lose nothing, since an element that moved could be taken
 * for another.  docs/request-hash.md has the rules, and cases that are a test.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
	const JsonPointer **pointers;
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

static bool select_value(const JsonbValue *value, const Place *place,
						 JsonbValue *result, bool *any);

/*
 * Whether a pointer hits anything
 */

/* Whether the rest of a pointer, from its token "at", leads to a value. */
static bool
pointer_hits(const JsonPointer *pointer, int at, const JsonbValue *value)
{
	const JsonPointerToken *token = &pointer->tokens[at];
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
check_include(const JsonPointerList *include, const JsonPointerList *optional, const JsonbValue *root)
{
	for (int i = 0; i < include->n; i++)
	{
		const JsonPointer *pointer = &include->pointers[i];

		CHECK_FOR_INTERRUPTS();
		if (!pointer_list_has(optional, pointer) && !pointer_hits(pointer, 0, root))
			ereport(ERROR,
					(errcode(ERRCODE_NO_SQL_JSON_ITEM),
					 errmsg("include \"%.*s\" selects nothing in the body", pointer->len, pointer->text),
					 errhint("Refuse a request without it, or name it in optional as well if it may be missing.")));
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
	Reach		reach = {0, palloc(sizeof(JsonPointer *) * Max(above->n, 1))};

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
		const JsonPointerToken *token = &above->pointers[i]->tokens[depth];

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
select_object(JsonbContainer *container, const Place *place, JsonbValue *result, bool *any)
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
		if (!select_value(&value, &below, &pairs[npairs].value, any))
			continue;
		pairs[npairs].key = name;
		pairs[npairs].order = npairs;
		npairs++;
	}
	place_free(&below);

	if (place->selected && begin.val.object.nPairs == 0)
		*any = true;
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
		const JsonPointer *pointer = place->include.pointers[i];

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
select_array(JsonbContainer *container, const Place *place, JsonbValue *result, bool *any)
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
		if (select_value(&element, &below, &elements[nelements], any))
			left = true;
		else
			elements[nelements].type = jbvNull;
		nelements++;
	}
	place_free(&below);

	if (place->selected && nelements == 0)
		*any = true;
	result->type = jbvArray;
	result->val.array.nElems = nelements;
	result->val.array.elems = elements;
	result->val.array.rawScalar = false;
	return left || all || place->selected || place->kept;
}

/*
 * What is left of a value; false: nothing.  An exclude that ends here wins over
 * all else.  Sets *any when a scalar is selected, or an array or object that is
 * empty.
 */
static bool
select_value(const JsonbValue *value, const Place *above, JsonbValue *result, bool *any)
{
	Place		place = *above;

	check_stack_depth();
	if (reach_ends(&place.exclude, place.depth))
		return false;
	if (reach_ends(&place.include, place.depth))
	{
		place.selected = true;
		place.include.n = 0;
	}
	if (!place.selected && !place.kept && place.include.n == 0)
		return false;

	if (value->type == jbvBinary)
	{
		JsonbContainer *container = value->val.binary.data;

		return JsonContainerIsObject(container) ?
			select_object(container, &place, result, any) :
			select_array(container, &place, result, any);
	}
	if (place.selected)
		*any = true;
	*result = *value;
	return place.selected || place.kept;
}

/* All pointers of a list, or none. */
static Reach
reach_all(const JsonPointerList *list)
{
	Reach		reach = {list == NULL ? 0 : list->n, NULL};

	reach.pointers = palloc(sizeof(JsonPointer *) * Max(reach.n, 1));
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
select_part(Jsonb *body, const JsonPointerList *include,
			const JsonPointerList *exclude, const JsonPointerList *optional)
{
	bool		any = false;
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
	if (!select_value(&root, &place, &part, &any) || !any)
		ereport(ERROR,
				(errcode(ERRCODE_NO_SQL_JSON_ITEM),
				 errmsg("nothing in the body is selected"),
				 errdetail("No value is left that include selects and exclude does not take out."),
				 errhint("A hash that says nothing of the body would make different requests one.")));
	return JsonbValueToJsonb(&part);
}
