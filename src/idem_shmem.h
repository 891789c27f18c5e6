/*-------------------------------------------------------------------------
 *
 * idem_shmem.h
 *		The library's side of the shared memory: making it, telling a relay.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHMEM_H
#define IDEM_SHMEM_H

#include "idem_shared.h"

extern void idem_shmem_init(void);
extern bool idem_preloaded(void);
extern IdemRelay *idem_my_relay(void);
extern IdemCommitting *idem_my_committing(void);
extern void idem_relay_wake(IdemRelay *relay);

#endif							/* IDEM_SHMEM_H */
