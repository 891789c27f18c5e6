/*-------------------------------------------------------------------------
 *
 * idem_pointer.h
 *		JSON Pointers (RFC 6901), with "*" for all.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_POINTER_H
#define IDEM_POINTER_H

#include "utils/array.h"

/* One step of a pointer. */
typedef struct JsonPointerToken
{
	const char *name;			/* of a member, unescaped */
	int			len;
	int			index;			/* of an element, or -1: the name is none */
	bool		all;			/* "*": all members, all elements */
} JsonPointerToken;

typedef struct JsonPointer
{
	const char *text;			/* as it was given */
	int			len;
	int			ntokens;		/* none: the whole value */
	JsonPointerToken *tokens;
} JsonPointer;

/* A list of pointers in the order in which they were given. */
typedef struct JsonPointerList
{
	int			n;
	JsonPointer *pointers;
} JsonPointerList;

extern JsonPointerList *pointer_list(ArrayType *array, const char *argument);
extern bool pointer_list_has(const JsonPointerList *list, const JsonPointer *pointer);
extern void pointer_list_check_optional(const JsonPointerList *include,
										const JsonPointerList *optional);

#endif							/* IDEM_POINTER_H */
