/*-------------------------------------------------------------------------
 *
 * idem_headers.h
 *		Lists of headers: [[name, value], ...].
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_HEADERS_H
#define IDEM_HEADERS_H

#include "utils/jsonb.h"

extern bool idem_headers_ok(Jsonb *headers, bool http);

#endif							/* IDEM_HEADERS_H */
