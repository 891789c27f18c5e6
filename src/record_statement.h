/*-------------------------------------------------------------------------
 *
 * record_statement.h
 *		Work on the tables of records with the rights of their owner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORD_STATEMENT_H
#define RECORD_STATEMENT_H

#include "executor/spi.h"

/* who the caller was, to be put back */
typedef struct RecordRights
{
	Oid			user;
	int			context;
} RecordRights;

extern Oid	record_relation(const char *name);
extern void record_rights_take(RecordRights *rights, Oid owner);
extern void record_rights_give_back(const RecordRights *rights);
extern uint64 record_run(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types, Datum *values,
						 const char *nulls, int expected);

#endif							/* RECORD_STATEMENT_H */
