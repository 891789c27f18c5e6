/*-------------------------------------------------------------------------
 *
 * relay_outbox.c
 *		The outbox as the relay uses it: transactions, reading rows.
 *
 * A leaf is always addressed by its own name: through the root, a statement
 * would lock every leaf and every index.  The worker's search_path is pinned to
 * pg_catalog, and leaves' names are made from their number alone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "idem_shared.h"
#include "relay_convert.h"
#include "relay_names.h"
#include "relay_outbox.h"

/* after so many transactions the log is flushed as far as it is written */
#define FLUSH_ALL_XIDS	1000000

#define READ_ROWS \
	"SELECT " RELAY_COLUMNS " FROM ONLY idem.outbox_%02d" \
	" WHERE seq BETWEEN $1 AND $2 AND published_at IS NULL AND parked_at IS NULL" \
	" ORDER BY seq LIMIT $3"

/* the first unpublished row among so many rows, and whether there may be more */
#define NEAR_ROWS	"10000"
#define FIRST_ROW_NEAR \
	"SELECT min(seq) FILTER (WHERE unpublished), count(*) = " NEAR_ROWS \
	" FROM (SELECT seq, published_at IS NULL AND parked_at IS NULL AS unpublished" \
	" FROM ONLY idem.outbox_%02d WHERE seq >= $1 ORDER BY seq LIMIT " NEAR_ROWS ") AS rows"

/* of all, and not by way of the index ("seq + 0"), which takes three times as long */
#define FIRST_ROW \
	"SELECT min(seq + 0) FROM ONLY idem.outbox_%02d" \
	" WHERE seq + 0 >= $1 AND published_at IS NULL AND parked_at IS NULL"

/* asked for beforehand: the header of a row, and what is usual for all of it */
#define HEADER_BYTES	64
#define ROW_BYTES		704

/* the row that is being made into a record; leaf -1: none */
static RelayRow current_row = {.leaf = -1};

/* ---- transactions ---- */

/*
 * Locks the outbox.  The extension is looked for by its name, and not the table:
 * a commit tells us before it tells the catalog caches, where a name that was looked
 * up in vain would stay unknown.
 */
static Oid
lock_outbox(Oid known)
{
	Relation	root = OidIsValid(known) ? try_relation_open(known, AccessShareLock) : NULL;

	if (root != NULL)
	{
		relation_close(root, NoLock);
		return known;
	}
	if (!OidIsValid(get_extension_oid("idem", true)))
		return InvalidOid;
	return RangeVarGetRelid(makeRangeVar("idem", "outbox", -1), AccessShareLock, true);
}

/*
 * Begins a unit of work.  Gives the oid of the outbox, which is another after DROP
 * and CREATE EXTENSION, and invalid when there is none.  known: what it was the
 * last time; a look in pg_extension takes an eighth of the time of an event that
 * comes alone.
 *
 * The root is locked before the snapshot is taken: if the tables were rewritten
 * in between, the snapshot would show them empty.
 */
Oid
relay_outbox_begin(Oid known)
{
	Oid			root;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	pgstat_report_activity(STATE_RUNNING, "publishing the outbox");
	root = lock_outbox(known);
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	return root;
}

/* Commits it, and lets autovacuum know of what it wrote. */
void
relay_outbox_end(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Runs a statement about a leaf, prepared at its first use.  Without a receiver
 * its rows go where SPI leaves them.
 */
void
relay_outbox_run(SPIPlanPtr *plans, const char *sql, int leaf, int nargs, Oid *types, Datum *values,
				 bool read_only, DestReceiver *receiver, int expected)
{
	SPIExecuteOptions options = {.read_only = read_only, .dest = receiver};
	int			rc;

	if (plans[leaf] == NULL)
	{
		SPIPlanPtr	plan = SPI_prepare(psprintf(sql, leaf), nargs, types);

		if (plan == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(plan);
		plans[leaf] = plan;
	}

	options.params = makeParamList(nargs);
	for (int i = 0; i < nargs; i++)
		options.params->params[i] = (ParamExternData) {values[i], false, PARAM_FLAG_CONST, types[i]};
	rc = SPI_execute_plan_extended(plans[leaf], &options);
	if (rc != expected)
		elog(ERROR, "unexpected result of a statement on the outbox: %s", SPI_result_code_string(rc));
}

/* ---- looking ---- */

/* Runs a statement that finds the first unpublished row of a leaf. */
static bool
find_first(SPIPlanPtr *plans, const char *sql, const RelayRead *read, int64 *seq)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1];
	bool		isnull;

	values[0] = Int64GetDatum(read->from);
	relay_outbox_run(plans, sql, read->leaf, 1, types, values, true, NULL, SPI_OK_SELECT);
	*seq = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	return !isnull;
}

/*
 * Finds the first unpublished row of a leaf, from a seq on.  Mostly it is near, or
 * there are not many; a leaf full of published rows is read as it lies.
 */
bool
relay_outbox_first(const RelayRead *read, int64 *seq)
{
	static SPIPlanPtr near[IDEM_LEAVES];
	static SPIPlanPtr all[IDEM_LEAVES];
	bool		isnull;

	if (find_first(near, FIRST_ROW_NEAR, read, seq))
		return true;
	if (!DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull)))
		return false;
	return find_first(all, FIRST_ROW, read, seq);
}

/* ---- no ghosts ---- */

/* Flushes the log as far as it is written. */
static void
flush_log(void)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();
	uint64		header = XLogSegmentOffset(end, wal_segment_size) == SizeOfXLogLongPHD
		? SizeOfXLogLongPHD : SizeOfXLogShortPHD;

	/* at the start of a page: the last record ended before the page's header */
	if (end % XLOG_BLCKSZ == header)
		end -= header;
	XLogFlush(end);
}

/*
 * Sees to it that the transaction which wrote a row is on disk.  A row can be
 * visible before its commit is (synchronous_commit = off); if it were published
 * then, a crash could leave an event of a transaction that never was.
 *
 * The server knows the place in the log of such commits.  It doesn't of old
 * transactions, and raises an error when asked; those that had ended before the
 * last flush of all are safe anyway.
 */
static void
flush_commit(TransactionId xid)
{
	static TransactionId flushed_before = InvalidTransactionId;
	static TransactionId last = InvalidTransactionId;
	Snapshot	snapshot = GetActiveSnapshot();

	if (TransactionIdEquals(xid, last))
		return;
	if (!TransactionIdIsNormal(flushed_before) ||
		snapshot->xmin - flushed_before > FLUSH_ALL_XIDS ||
		!TransactionIdPrecedes(xid, snapshot->xmax))
	{
		flush_log();
		flushed_before = snapshot->xmin;
	}
	else if (!TransactionIdPrecedes(xid, flushed_before))
		XLogFlush(TransactionIdGetCommitLSN(xid));
	last = xid;
}

/* ---- reading: the rows go from the executor to the sink one by one ---- */

/* a read under way */
typedef struct Reading
{
	DestReceiver receiver;		/* first, so that the executor can call us */
	const RelayRead *read;
	const char *source;
	const RelayRowSink *sink;
	void	   *arg;
	TimestampTz now;
	MemoryContext row_context;
	int			nrows;
} Reading;

/*
 * Asks for the row after this one, while this one is dealt with: half of the time
 * of making a record is a wait for memory.  Rows of a page lie at equal distances
 * if they are of equal length; else it does no harm.
 */
static void
prefetch_next(const Datum *values)
{
	static const char *last = NULL;
	const char *row = DatumGetPointer(values[COL_EVENT_ID]);
	ptrdiff_t	distance = row - last;

	last = row;
	if (distance > -BLCKSZ && distance < BLCKSZ)
		relay_prefetch(row + distance - HEADER_BYTES, ROW_BYTES);
}

/*
 * Makes a row of the rules, and a Kafka record if it can go: most of the time goes
 * into that, and a row may be read several times before it can.  False: stop reading.
 */
static bool
take_row(Reading *reading, const Datum *values, const bool *nulls)
{
	ItemPointer tid = (ItemPointer) DatumGetPointer(values[COL_CTID]);
	RelayRecord record;
	RelayVerdict verdict;

	/* all that is known of the row, before anything can fail */
	current_row.leaf = reading->read->leaf;
	current_row.seq = DatumGetInt64(values[COL_SEQ]);
	current_row.block = ItemPointerGetBlockNumber(tid);
	current_row.offset = ItemPointerGetOffsetNumber(tid);
	memcpy(current_row.event_id, DatumGetUUIDP(values[COL_EVENT_ID])->data, sizeof(current_row.event_id));
	current_row.attempts = DatumGetInt32(values[COL_ATTEMPTS]);
	current_row.bytes = RELAY_ROW_OVERHEAD;
	current_row.partition = RELAY_ANY_PARTITION;
	record.topic = TextDatumGetCString(values[COL_TOPIC]);
	current_row.topic = relay_names_number(record.topic);
	current_row.key = relay_names_key(record.topic, values[COL_PARTITION_KEY], nulls[COL_PARTITION_KEY]);
	record.key = relay_convert_key(values, nulls);

	verdict = reading->sink->look(reading->arg, &current_row, &record);
	if (verdict != RELAY_PRODUCE)
		return verdict == RELAY_SKIP;
	relay_convert(values, nulls, current_row.topic, reading->source, reading->now, &record);
	current_row.bytes = relay_record_bytes(&record);
	return reading->sink->take(reading->arg, &current_row, &record);
}

/* Takes a row of the executor; false: no more of them. */
static bool
receive_row(TupleTableSlot *slot, DestReceiver *receiver)
{
	Reading    *reading = (Reading *) receiver;
	const Datum *values;
	MemoryContext old_context;
	bool		more;

	CHECK_FOR_INTERRUPTS();
	slot_getallattrs(slot);
	values = slot->tts_values;
	prefetch_next(values);
	flush_commit(DatumGetTransactionId(values[COL_XMIN]));
	if (reading->nrows++ == 0)
		IDEM_TEST_POINT("relay-read");
	old_context = MemoryContextSwitchTo(reading->row_context);
	more = take_row(reading, values, slot->tts_isnull);
	MemoryContextSwitchTo(old_context);
	MemoryContextReset(reading->row_context);
	current_row.leaf = -1;
	return more;
}

static void
start_rows(DestReceiver *receiver, int operation, TupleDesc tupdesc)
{
	(void) receiver;
	(void) operation;
	(void) tupdesc;
}

static void
end_rows(DestReceiver *receiver)
{
	(void) receiver;
}

/*
 * Reads rows in order of seq and gives each to the sink, until it wants no
 * more.  Gives the number of rows that it was given.
 */
int
relay_outbox_read(const RelayRead *read, const char *source, const RelayRowSink *sink, void *arg)
{
	static SPIPlanPtr plans[IDEM_LEAVES];
	Oid			types[3] = {INT8OID, INT8OID, INT4OID};
	Datum		values[3];
	Reading		reading = {
		/* the kind is for SPI, which takes DestNone for rows that nobody wants */
		.receiver = {receive_row, start_rows, end_rows, end_rows, DestSQLFunction},
		.read = read,
		.source = source,
		.sink = sink,
		.arg = arg,
		.now = GetCurrentTimestamp(),
		.row_context = AllocSetContextCreate(CurrentMemoryContext, "idem relay row", ALLOCSET_DEFAULT_SIZES)
	};

	values[0] = Int64GetDatum(read->from);
	values[1] = Int64GetDatum(read->upto);
	values[2] = Int32GetDatum(read->limit);
	relay_outbox_run(plans, READ_ROWS, read->leaf, lengthof(types), types, values, true, &reading.receiver, SPI_OK_SELECT);
	MemoryContextDelete(reading.row_context);
	return reading.nrows;
}

/*
 * After an error: whether it came from one row that could not be made into a
 * record, and which.
 */
bool
relay_outbox_broken_row(RelayRow *row)
{
	bool		broken = current_row.leaf >= 0;

	*row = current_row;
	current_row.leaf = -1;
	return broken;
}
