/*-------------------------------------------------------------------------
 *
 * idem_guc.h
 *		Settings of the library idem.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_GUC_H
#define IDEM_GUC_H

#include "nodes/pg_list.h"

extern char *idem_databases;	/* databases that have a relay */
extern char *idem_kafka_brokers;	/* bootstrap servers */
extern char *idem_source;		/* ce_source of the events */
extern int	idem_relay_window_rows; /* events on their way, at most */
extern int	idem_relay_window_bytes;	/* kB: the same */
extern int	idem_lease;			/* ms: life of a claim */
extern int	idem_call_margin;	/* ms: lease after the call's deadline */
extern int	idem_call_grace;	/* ms: after the call's deadline, before a verdict */
extern int	idem_mismatch_status;	/* HTTP status of a reused key */
extern int	idem_max_tries;		/* attempts before UNKNOWN */
extern int	idem_max_response_bytes;	/* larger bodies are not kept */
extern int	idem_response_retention;	/* min: life of a response */
extern int	idem_record_retention;	/* min: life of a record */

extern void idem_guc_init(void);
extern List *idem_database_list(void);

#endif							/* IDEM_GUC_H */
