/*-------------------------------------------------------------------------
 *
 * idem_select.h
 *		Which part of a JSON value counts: the pruned copy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SELECT_H
#define IDEM_SELECT_H

#include "utils/jsonb.h"

#include "idem_pointer.h"

extern Jsonb *select_part(Jsonb *body, const JsonPointerList *include,
						  const JsonPointerList *exclude, const JsonPointerList *optional);

#endif							/* IDEM_SELECT_H */
