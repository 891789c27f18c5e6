/*-------------------------------------------------------------------------
 *
 * record_statement.c
 *		Work on the tables of records with the rights of their owner.
 *
 * As the checks of foreign keys do, and for their reason: an application may
 * claim a key without any right on the table.  Marking the SQL functions
 * SECURITY DEFINER would cost each call what only some of them need.
 *
 * Statements are constant text with qualified names and operators, so that no
 * search_path changes what they mean; it is pinned all the same, for triggers and
 * functions of constraints that someone may have added run with these rights.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "record_statement.h"

/* A table or sequence of ours. */
Oid
record_relation(const char *name)
{
	Oid			relation = get_relname_relid(name, get_namespace_oid("idem", false));

	if (!OidIsValid(relation))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"idem.%s\" does not exist", name)));
	return relation;
}

/*
 * Becomes the owner of a table, whom no row security holds.  An error puts the
 * caller back by itself.
 */
void
record_rights_take(RecordRights *rights, Oid owner)
{
	GetUserIdAndSecContext(&rights->user, &rights->context);
	SetUserIdAndSecContext(owner, rights->context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_NOFORCE_RLS);
}

void
record_rights_give_back(const RecordRights *rights)
{
	SetUserIdAndSecContext(rights->user, rights->context);
}

static Oid
owner_of_records(void)
{
	Oid			owner;
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(record_relation("idempotency")));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for table idem.idempotency");
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * Runs a statement on a table of ours, prepared at its first use in a session.
 * Returns how many rows it gave or wrote.
 */
uint64
record_run(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types, Datum *values,
		   const char *nulls, int expected)
{
	RecordRights rights;
	int			guc_level = NewGUCNestLevel();
	int			rc;

	record_rights_take(&rights, owner_of_records());
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	if (*plan == NULL)
	{
		SPIPlanPtr	prepared = SPI_prepare(sql, nargs, types);

		if (prepared == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(prepared);
		*plan = prepared;
	}
	rc = SPI_execute_plan(*plan, values, nulls, false, 0);
	AtEOXact_GUC(true, guc_level);
	record_rights_give_back(&rights);
	if (rc != expected)
		elog(ERROR, "unexpected result of a statement on idem.idempotency: %s",
			 SPI_result_code_string(rc));
	return SPI_processed;
}
