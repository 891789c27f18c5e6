/*-------------------------------------------------------------------------
 *
 * idem.c
 *		Loading of the library idem.
 *
 * Preloaded (shared_preload_libraries), it also reserves shared memory and
 * registers one relay worker per database in idem.databases.  Loaded by a
 * session, it only brings the functions and the settings.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "idem_guc.h"
#include "idem_note.h"
#include "idem_shmem.h"
#ifdef IDEM_TEST
#include "idem_test.h"
#endif

PG_MODULE_MAGIC;

void		_PG_init(void);

/* Runs once in each process that loads the library. */
void
_PG_init(void)
{
	idem_guc_init();
	idem_note_init();
#ifdef IDEM_TEST
	idem_test_init();
#endif

	/* pg_upgrade moves the tables; nothing may publish from them meanwhile */
	if (process_shared_preload_libraries_in_progress && !IsBinaryUpgrade)
		idem_shmem_init();
}
