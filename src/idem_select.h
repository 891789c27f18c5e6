/*-------------------------------------------------------------------------
 *
 * idem_select.h
 *		Which part of a JSON value counts: JSON Pointers and the pruned copy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SELECT_H
#define IDEM_SELECT_H

#include "utils/array.h"
#include "utils/jsonb.h"

/* One step of a pointer. */
typedef struct SelectToken
{
	const char *name;			/* of a member, unescaped */
	int			len;
	int			index;			/* of an element, or -1: the name is none */
	bool		all;			/* "*": all members, all elements */
} SelectToken;

typedef struct SelectPointer
{
	const char *text;			/* as it was given */
	int			len;
	int			ntokens;		/* none: the whole value */
	SelectToken *tokens;
} SelectPointer;

/* A list of pointers in the order in which they were given. */
typedef struct SelectList
{
	int			n;
	SelectPointer *pointers;
} SelectList;

extern SelectList *select_list(ArrayType *array, const char *argument);
extern void select_check_optional(const SelectList *include, const SelectList *optional);
extern Jsonb *select_part(Jsonb *body, const SelectList *include,
						  const SelectList *exclude, const SelectList *optional);

#endif							/* IDEM_SELECT_H */
