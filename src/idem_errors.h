/*-------------------------------------------------------------------------
 *
 * idem_errors.h
 *		SQLSTATEs of the extension's own class, ID.
 *
 * Standard codes are used where they fit; these are for what only idem knows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ERRORS_H
#define IDEM_ERRORS_H

#include "utils/elog.h"

/* the attempt does not own the record (it was taken over, or there is none) */
#define ERRCODE_IDEM_FENCED				MAKE_SQLSTATE('I','D','0','0','1')

/* the record's state does not allow this */
#define ERRCODE_IDEM_WRONG_STATE		MAKE_SQLSTATE('I','D','0','0','2')

/* the external call was marked in this very transaction */
#define ERRCODE_IDEM_CALL_IN_TRANSACTION MAKE_SQLSTATE('I','D','0','0','3')

/* a once_key was used before, with other content */
#define ERRCODE_IDEM_ONCE_KEY_REUSED	MAKE_SQLSTATE('I','D','0','0','5')

#endif							/* IDEM_ERRORS_H */
