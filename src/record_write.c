/*-------------------------------------------------------------------------
 *
 * record_write.c
 *		Idempotency records: writing one.
 *
 * A record is always written as a whole row: straight into the table, as the
 * logical replication worker writes, as long as the table is as the install
 * script made it; by a statement where someone has added triggers, rules, columns,
 * constraints or indexes, so that all of them get what an ordinary statement
 * would give them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "record_statement.h"
#include "record_store.h"

/* what the install script gives the table */
static const char *const table_indexes[] = {
	"idempotency_pkey", "idempotency_unsettled", "idempotency_sweep"
};
#define TABLE_CHECK		"idempotency_valid"

/* the columns behind the key, and parameters for them, in their order */
#define OTHER_COLUMNS \
	"request_hash, operation, state, attempt, tries, claim_xid, call_xid, resource_id," \
	" created_at, claimed_at, lease_expires_at, call_started_at, call_deadline, dedup_until," \
	" yielded, context, retention, unknown_at, unknown_reason, external_ref, verdict," \
	" response_status, response_headers, response_body, response_size, response_digest," \
	" completed_at, response_expires_at, expires_at, sweep_at"
#define OTHER_VALUES \
	"$3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22," \
	" $23, $24, $25, $26, $27, $28, $29, $30, $31, $32"

#define INSERT_RECORD \
	"INSERT INTO idem.idempotency (principal_id, idempotency_key, " OTHER_COLUMNS ")" \
	" VALUES ($1, $2, " OTHER_VALUES ") ON CONFLICT (principal_id, idempotency_key) DO NOTHING"

#define UPDATE_RECORD \
	"UPDATE idem.idempotency SET (" OTHER_COLUMNS ") = ROW(" OTHER_VALUES ")" \
	" WHERE principal_id OPERATOR(pg_catalog.=) $1 AND idempotency_key OPERATOR(pg_catalog.=) $2"

/*
 * Raises the error for a statement that should have written a record and did
 * not: only the table's own triggers and rules can do that.
 */
void
record_not_written(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
			 errmsg("the idempotency record was not written"),
			 errhint("A trigger or a rule on idem.idempotency suppressed it.")));
}

/* ---- straight into the table ---- */

/* a row on its way into the table, and what its indexes and constraints need */
typedef struct Writer
{
	Relation	table;
	EState	   *estate;
	ResultRelInfo *target;
	TupleTableSlot *slot;		/* the row as it is to be */
	RecordRights rights;
} Writer;

/* Whether there are as many indexes as the install script made. */
static bool
indexes_counted(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	int			n = list_length(indexes);

	list_free(indexes);
	return n == (int) lengthof(table_indexes);
}

/* Whether they are the ones that the install script made. */
static bool
indexes_as_made(const ResultRelInfo *target)
{
	int			known = 0;

	for (int i = 0; i < target->ri_NumIndices; i++)
		for (int j = 0; j < (int) lengthof(table_indexes); j++)
			known += strcmp(RelationGetRelationName(target->ri_IndexRelationDescs[i]), table_indexes[j]) == 0;
	return known == (int) lengthof(table_indexes);
}

/*
 * Whether nothing was added to the table that a statement would have to see to, or
 * put in the place of something: functions of others run with a pinned path only.
 */
static bool
is_as_made(Relation table)
{
	TupleDesc	tupdesc = RelationGetDescr(table);

	return table->trigdesc == NULL && table->rd_rules == NULL &&
		tupdesc->natts == RECORD_NCOLUMNS &&
		tupdesc->constr != NULL && tupdesc->constr->num_check == 1 &&
		strcmp(tupdesc->constr->check[0].ccname, TABLE_CHECK) == 0 &&
		indexes_counted(table);
}

static void
end_writing(Writer *writer)
{
	ExecCloseIndices(writer->target);
	ExecDropSingleTupleTableSlot(writer->slot);
	FreeExecutorState(writer->estate);
	record_rights_give_back(&writer->rights);
	table_close(writer->table, NoLock);
}

/* Begins to write a row.  False: a statement has to do it. */
static bool
begin_writing(Writer *writer, const RecordRow *row)
{
	RangeTblEntry *rte;
	List	   *permissions = NIL;

	writer->table = table_open(record_relation("idempotency"), RowExclusiveLock);
	record_row_check_columns(RelationGetDescr(writer->table));
	if (!is_as_made(writer->table))
	{
		table_close(writer->table, NoLock);
		return false;
	}

	/* the function of the constraint is not everyone's to call */
	record_rights_take(&writer->rights, writer->table->rd_rel->relowner);

	rte = makeNode(RangeTblEntry);
	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(writer->table);
	rte->relkind = writer->table->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	writer->estate = CreateExecutorState();
	addRTEPermissionInfo(&permissions, rte);
	ExecInitRangeTable(writer->estate, list_make1(rte), permissions, bms_make_singleton(1));
	writer->target = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->target, writer->table, 1, NULL, 0);
	ExecOpenIndices(writer->target, false);

	writer->slot = MakeSingleTupleTableSlot(RelationGetDescr(writer->table), &TTSOpsVirtual);
	writer->slot->tts_tableOid = RelationGetRelid(writer->table);
	memcpy(writer->slot->tts_values, row->values, RECORD_NCOLUMNS * sizeof(Datum));
	memcpy(writer->slot->tts_isnull, row->nulls, RECORD_NCOLUMNS * sizeof(bool));
	ExecStoreVirtualTuple(writer->slot);

	if (!indexes_as_made(writer->target))
	{
		end_writing(writer);
		return false;
	}
	return true;
}

/*
 * Inserts a row.  Under the lock on its key nobody else's claim can be in the way;
 * what others than idem may have inserted is a unique violation.
 */
static bool
insert_straight(const RecordRow *row)
{
	Writer		writer;

	if (XactReadOnly || !begin_writing(&writer, row))
		return false;
	ExecSimpleRelationInsert(writer.target, writer.estate, writer.slot);
	end_writing(&writer);
	return true;
}

/* Updates the row version that is locked. */
static bool
update_straight(RecordRow *row)
{
	Writer		writer;
	TupleTableSlot *locked;

	if (!ItemPointerIsValid(&row->tid) || !begin_writing(&writer, row))
		return false;
	locked = table_slot_create(writer.table, NULL);
	if (!table_tuple_fetch_row_version(writer.table, &row->tid, SnapshotAny, locked))
		elog(ERROR, "a locked idempotency record is not there");

	/* no triggers, so no EPQState */
	ExecSimpleRelationUpdate(writer.target, writer.estate, NULL, locked, writer.slot);
	ExecDropSingleTupleTableSlot(locked);
	end_writing(&writer);

	ItemPointerSetInvalid(&row->tid);	/* it is another version now */
	return true;
}

/* ---- by a statement ---- */

/* Runs a statement that has all columns of a row as its parameters. */
static uint64
write_by_statement(SPIPlanPtr *plan, const char *sql, const RecordRow *row, int expected)
{
	Oid			types[RECORD_NCOLUMNS];
	char		nulls[RECORD_NCOLUMNS];

	for (int i = 0; i < RECORD_NCOLUMNS; i++)
		nulls[i] = row->nulls[i] ? 'n' : ' ';
	memcpy(types, record_column_types, sizeof(types));
	return record_run(plan, sql, RECORD_NCOLUMNS, types, row->values, nulls, expected);
}

/* Writes a new row; false when there is one, seen or not. */
static bool
insert_row(const RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	return insert_straight(row) || write_by_statement(&plan, INSERT_RECORD, row, SPI_OK_INSERT) == 1;
}

/* Writes a row that is locked. */
static void
update_row(RecordRow *row)
{
	static SPIPlanPtr plan = NULL;

	if (!update_straight(row) && write_by_statement(&plan, UPDATE_RECORD, row, SPI_OK_UPDATE) != 1)
		record_not_written();
}

/* ---- what changes in a row ---- */

static void
set_state(RecordRow *row, const char *state)
{
	record_set(row, COL_STATE, CStringGetTextDatum(state));
}

static void
set_null(RecordRow *row, RecordColumn column)
{
	row->nulls[column] = true;
}

/*
 * The next attempt number.  One that was told must not come again, not even when
 * the server crashes before this transaction commits, so it is flushed.  The
 * sequence logs its numbers in advance: there is something to flush for a few of
 * them only.
 */
static int64
next_attempt(void)
{
	Oid			relid = record_relation("attempt");
	int64		attempt = nextval_internal(relid, false);
	Relation	sequence = relation_open(relid, AccessShareLock);
	Buffer		buffer = ReadBuffer(sequence, 0);
	XLogRecPtr	lsn = BufferGetLSNAtomic(buffer);

	ReleaseBuffer(buffer);
	relation_close(sequence, NoLock);
	XLogFlush(lsn);
	return attempt;
}

/* What an external call that was just marked means for the row. */
static void
set_call(RecordRow *row, const RecordDecision *decision)
{
	record_set_time(row, COL_LEASE_EXPIRES_AT, decision->lease_expires_at);
	record_set_time(row, COL_CALL_STARTED_AT, decision->call_started_at);
	record_set_time(row, COL_CALL_DEADLINE, decision->call_deadline);
	record_set_time(row, COL_DEDUP_UNTIL, decision->dedup_until);
	record_set(row, COL_YIELDED, BoolGetDatum(false));
}

/* A new owner, with an attempt number of its own; nothing is answered. */
static void
set_owner(RecordRow *row, const RecordDecision *decision)
{
	FullTransactionId xid = GetTopFullTransactionId();

	row->facts.attempt = next_attempt();
	if (decision->marks_call)
		row->call_xid = xid;

	set_state(row, "IN_PROGRESS");
	record_set(row, COL_ATTEMPT, Int64GetDatum(row->facts.attempt));
	record_set(row, COL_TRIES, Int32GetDatum(decision->tries));
	record_set(row, COL_CLAIM_XID, FullTransactionIdGetDatum(xid));
	if (FullTransactionIdIsValid(row->call_xid))
		record_set(row, COL_CALL_XID, FullTransactionIdGetDatum(row->call_xid));
	record_set_time(row, COL_CLAIMED_AT, row->facts.claimed_at);
	set_call(row, decision);
	record_set_time(row, COL_EXPIRES_AT, decision->expires_at);
	record_set_time(row, COL_SWEEP_AT, row->sweep_at);
}

/* What stays the same over the attempts of a record. */
static void
set_request(const RecordKey *key, RecordRow *row)
{
	Interval   *retention = palloc0(sizeof(Interval));

	record_row_new_columns(row);
	record_set_pointer(row, COL_PRINCIPAL_ID, key->principal_id);
	record_set_pointer(row, COL_IDEMPOTENCY_KEY, key->idempotency_key);
	record_set_pointer(row, COL_REQUEST_HASH, row->request_hash);
	record_set_pointer(row, COL_OPERATION, row->operation);
	record_set(row, COL_RESOURCE_ID, UUIDPGetDatum(&row->resource_id));
	record_set_time(row, COL_CREATED_AT, row->created_at);
	record_set_pointer(row, COL_CONTEXT, row->context);
	retention->time = row->retention;
	if (row->retention != RECORD_TIME_UNSET)
		record_set_pointer(row, COL_RETENTION, retention);
}

/* Inserts a new record; false when there is one, seen or not. */
bool
record_insert(const RecordKey *key, RecordRow *row, const RecordDecision *decision)
{
	set_request(key, row);
	set_owner(row, decision);
	return insert_row(row);
}

/* Puts a new record in the place of one whose row is locked. */
void
record_replace(const RecordKey *key, RecordRow *row, const RecordDecision *decision)
{
	set_request(key, row);
	set_owner(row, decision);
	update_row(row);
}

/* Gives a record, whose row is locked, a new owner. */
void
record_take_over(RecordRow *row, const RecordDecision *decision)
{
	set_owner(row, decision);
	update_row(row);
}

/* Marks a call of a record whose row is locked. */
void
record_mark_call(RecordRow *row, const RecordDecision *decision)
{
	record_set(row, COL_CALL_XID, FullTransactionIdGetDatum(GetTopFullTransactionId()));
	set_call(row, decision);
	set_null(row, COL_EXPIRES_AT);
	update_row(row);
}

/* Ends the lease of a record whose row is locked. */
void
record_yield(RecordRow *row, TimestampTz now)
{
	record_set_time(row, COL_LEASE_EXPIRES_AT, now);
	record_set(row, COL_YIELDED, BoolGetDatum(true));
	update_row(row);
}

/* Makes a record, whose row is locked, UNKNOWN. */
void
record_set_unknown(RecordRow *row, const RecordUnknown *unknown)
{
	set_state(row, "UNKNOWN");
	record_set(row, COL_TRIES, Int32GetDatum(unknown->tries));
	record_set_time(row, COL_UNKNOWN_AT, unknown->at);
	record_set_pointer(row, COL_UNKNOWN_REASON, unknown->reason);
	record_set_pointer(row, COL_EXTERNAL_REF, unknown->external_ref);
	record_set(row, COL_RESPONSE_STATUS, Int32GetDatum(unknown->status));
	set_null(row, COL_EXPIRES_AT);
	update_row(row);
	row->response_status = unknown->status;
}

/* Stores the response of a record whose row is locked. */
void
record_complete(RecordRow *row, const RecordResponse *response)
{
	set_state(row, "COMPLETED");
	record_set(row, COL_RESPONSE_STATUS, Int32GetDatum(response->status));
	record_set_pointer(row, COL_RESPONSE_HEADERS, response->headers);
	record_set_pointer(row, COL_RESPONSE_BODY, response->body);
	record_set(row, COL_RESPONSE_SIZE, Int64GetDatum(response->size));
	record_set_pointer(row, COL_RESPONSE_DIGEST, response->digest);
	record_set_time(row, COL_COMPLETED_AT, response->completed_at);
	record_set_time(row, COL_RESPONSE_EXPIRES_AT, response->response_expires_at);
	record_set_time(row, COL_EXPIRES_AT, response->expires_at);
	record_set_pointer(row, COL_VERDICT, response->verdict ? cstring_to_text(response->verdict) : NULL);
	update_row(row);
}

#define ADD_RESOLUTION \
	"INSERT INTO idem.resolution (principal_id, idempotency_key, attempt, verdict, evidence," \
	" response_status, resolved_by, resolved_at) VALUES ($1, $2, $3, $4, $5, $6, SESSION_USER, $7)"

/* Writes down who settled a record, how and why. */
void
record_add_resolution(const RecordKey *key, int64 attempt, Jsonb *evidence, const RecordResponse *response)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[7] = {TEXTOID, TEXTOID, INT8OID, TEXTOID, JSONBOID, INT4OID, TIMESTAMPTZOID};
	Datum		values[7];

	values[0] = PointerGetDatum(key->principal_id);
	values[1] = PointerGetDatum(key->idempotency_key);
	values[2] = Int64GetDatum(attempt);
	values[3] = CStringGetTextDatum(response->verdict);
	values[4] = JsonbPGetDatum(evidence);
	values[5] = Int32GetDatum(response->status);
	values[6] = TimestampTzGetDatum(response->completed_at);
	record_run(&plan, ADD_RESOLUTION, 7, types, values, NULL, SPI_OK_INSERT);
}
