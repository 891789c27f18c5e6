/*-------------------------------------------------------------------------
 *
 * idem_headers.c
 *		Lists of headers: [[name, value], ...].
 *
 * An array of pairs and not an object: the order and repeated names matter.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "idem_headers.h"

/* Whether a string could end a header line early, or hide in it. */
static bool
has_control_character(const JsonbValue *string)
{
	for (int i = 0; i < string->val.string.len; i++)
	{
		unsigned char c = string->val.string.val[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return true;
	}
	return false;
}

/* Whether one element of the list is [name, value]. */
static bool
pair_ok(const JsonbValue *pair, bool http)
{
	JsonbContainer *container;
	JsonbValue *name;
	JsonbValue *value;

	if (pair->type != jbvBinary)
		return false;
	container = pair->val.binary.data;
	if (!JsonContainerIsArray(container) || JsonContainerSize(container) != 2)
		return false;
	name = getIthJsonbValueFromContainer(container, 0);
	value = getIthJsonbValueFromContainer(container, 1);
	if (name->type != jbvString || name->val.string.len == 0)
		return false;
	if (http)
		return value->type == jbvString &&
			!has_control_character(name) && !has_control_character(value);
	return value->type == jbvString || value->type == jbvNull;
}

/*
 * Whether a list of headers has the form [[name, value], ...], with names of
 * one character or more and values that are strings.  Kafka's values may be
 * null; HTTP's headers may not contain control characters.
 */
bool
idem_headers_ok(Jsonb *headers, bool http)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	element;

	if (!JB_ROOT_IS_ARRAY(headers) || JB_ROOT_IS_SCALAR(headers))
		return false;
	it = JsonbIteratorInit(&headers->root);
	token = JsonbIteratorNext(&it, &element, true);
	Assert(token == WJB_BEGIN_ARRAY);
	while ((token = JsonbIteratorNext(&it, &element, true)) == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		if (!pair_ok(&element, http))
			return false;
	}
	return true;
}
