/*-------------------------------------------------------------------------
 *
 * idem_args.h
 *		Arguments of the SQL functions: limits and conversions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ARGS_H
#define IDEM_ARGS_H

#include "fmgr.h"
#include "datatype/timestamp.h"

/* most characters of a principal, key, consumer or once_key */
#define IDEM_NAME_MAX_CHARS		255

extern void idem_check_name(text *value, const char *name);
extern text *idem_name_arg(FunctionCallInfo fcinfo, int argno, const char *name);
extern bool idem_interval_arg(FunctionCallInfo fcinfo, int argno, const char *name,
							  int64 min, int64 *usec);
extern int64 idem_interval_usec(const Interval *value);
extern int	idem_count_arg(FunctionCallInfo fcinfo, int argno, const char *name, int max);
extern void idem_require_arg(FunctionCallInfo fcinfo, int argno, const char *name);

#endif							/* IDEM_ARGS_H */
