/*-------------------------------------------------------------------------
 *
 * idem_canonical.h
 *	  Canonical text of the server's values, for the other files of src/.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_IDEM_CANONICAL_H
#define IDEM_IDEM_CANONICAL_H

#include "utils/jsonb.h"

#include "canonical.h"

/*
 * How much of a number an error shows.  Errors get into logs, and a card number
 * may have been sent as a number: six digits of that may be shown.
 */
#define IDEM_SHOWN_NUMBER_LEN 6

extern CanonicalMode idem_canonical_mode(const text *name);
extern void idem_write_jsonb(CanonicalSink *sink, const Jsonb *value,
							 CanonicalMode mode);
extern void idem_write_text(CanonicalSink *sink, const text *json,
							CanonicalMode mode);
extern void idem_write_string(CanonicalSink *sink, const char *str, int len);

#endif							/* IDEM_IDEM_CANONICAL_H */
