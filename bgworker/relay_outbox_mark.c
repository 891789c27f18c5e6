/*-------------------------------------------------------------------------
 *
 * relay_outbox_mark.c
 *		Marking rows of the outbox as published.
 *
 * A row is marked only if it is the one that was sent, and unpublished still:
 * place, seq and event id are compared.  Rows at their places are updated
 * through the table's access method, as the apply worker of logical replication
 * does; a statement costs more than twice as much.  CHECKs and indexes keep
 * their meaning that way.  The statement does what is left: rows that have
 * moved, and leaves with triggers or rules.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "idem_shared.h"
#include "relay_outbox.h"

/* what both statements set and compare; rows are found in another way */
#define MARK(found_by) \
	"UPDATE ONLY idem.outbox_%02d AS o SET published_at = clock_timestamp()," \
	" kafka_partition = m.partition, kafka_offset = m.kafka_offset" \
	" FROM unnest($1::tid[], $2::bigint[], $3::uuid[], $4::integer[], $5::bigint[])" \
	" AS m (tid, seq, event_id, partition, kafka_offset)" \
	" WHERE " found_by "o.seq = m.seq AND o.event_id = m.event_id" \
	" AND o.published_at IS NULL AND o.parked_at IS NULL"

#define MARK_ROWS		MARK("o.ctid = m.tid AND ")
#define MARK_MOVED_ROWS	MARK("")

/* ---- by statement ---- */

/* The arrays that a mark takes its rows from. */
static void
mark_arrays(const RelayEntry **entries, int n, Datum *arrays)
{
	ItemPointerData *tids = palloc(sizeof(ItemPointerData) * n);
	Datum	   *tid = palloc(sizeof(Datum) * n);
	Datum	   *seq = palloc(sizeof(Datum) * n);
	Datum	   *event_id = palloc(sizeof(Datum) * n);
	Datum	   *partition = palloc(sizeof(Datum) * n);
	Datum	   *offset = palloc(sizeof(Datum) * n);

	for (int i = 0; i < n; i++)
	{
		const RelayEntry *entry = entries[i];

		ItemPointerSet(&tids[i], entry->row.block, entry->row.offset);
		tid[i] = PointerGetDatum(&tids[i]);
		seq[i] = Int64GetDatum(entry->row.seq);
		event_id[i] = PointerGetDatum(entry->row.event_id);
		partition[i] = Int32GetDatum(entry->partition);
		offset[i] = Int64GetDatum(entry->kafka_offset);
	}
	arrays[0] = PointerGetDatum(construct_array(tid, n, TIDOID, sizeof(ItemPointerData), false, TYPALIGN_SHORT));
	arrays[1] = PointerGetDatum(construct_array(seq, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	arrays[2] = PointerGetDatum(construct_array(event_id, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
	arrays[3] = PointerGetDatum(construct_array(partition, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	arrays[4] = PointerGetDatum(construct_array(offset, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* Marks by a statement; gives the number of rows marked. */
static int
run_mark(SPIPlanPtr *plans, const char *sql, int leaf, const RelayEntry **entries, int n)
{
	Oid			types[5] = {TIDARRAYOID, INT8ARRAYOID, UUIDARRAYOID, INT4ARRAYOID, INT8ARRAYOID};
	Datum		arrays[5];

	if (n == 0)
		return 0;
	mark_arrays(entries, n, arrays);
	relay_outbox_run(plans, sql, leaf, lengthof(types), types, arrays, false, NULL, SPI_OK_UPDATE);
	return (int) SPI_processed;
}

/* ---- at their places ---- */

/* a leaf that is being marked */
typedef struct Leaf
{
	Relation	rel;
	BlockNumber nblocks;
	EState	   *estate;
	ResultRelInfo *result;
	TupleTableSlot *old;
	TupleTableSlot *new;
	TimestampTz now;

	/* columns, from 0 */
	int			seq;
	int			event_id;
	int			published_at;
	int			parked_at;
	int			partition;
	int			offset;
} Leaf;

static Relation
open_leaf(int number)
{
	return table_openrv(makeRangeVar("idem", psprintf("outbox_%02d", number), -1), RowExclusiveLock);
}

static int
column(Relation rel, const char *name)
{
	AttrNumber	number = get_attnum(RelationGetRelid(rel), name);

	if (number == InvalidAttrNumber)
		elog(ERROR, "column \"%s\" of relation \"%s\" does not exist", name, RelationGetRelationName(rel));
	return number - 1;
}

static void
begin_leaf(Leaf *leaf, Relation rel)
{
	leaf->rel = rel;
	/* it can't get shorter under our lock */
	leaf->nblocks = RelationGetNumberOfBlocks(rel);
	leaf->seq = column(rel, "seq");
	leaf->event_id = column(rel, "event_id");
	leaf->published_at = column(rel, "published_at");
	leaf->parked_at = column(rel, "parked_at");
	leaf->partition = column(rel, "kafka_partition");
	leaf->offset = column(rel, "kafka_offset");

	leaf->estate = CreateExecutorState();
	leaf->estate->es_output_cid = GetCurrentCommandId(true);
	leaf->estate->es_snapshot = GetActiveSnapshot();
	leaf->result = makeNode(ResultRelInfo);
	InitResultRelInfo(leaf->result, rel, 0, NULL, 0);
	ExecOpenIndices(leaf->result, false);
	leaf->now = GetCurrentTimestamp();
	leaf->old = table_slot_create(rel, &leaf->estate->es_tupleTable);
	leaf->new = ExecInitExtraTupleSlot(leaf->estate, RelationGetDescr(rel), &TTSOpsVirtual);
}

static void
end_leaf(Leaf *leaf)
{
	ExecResetTupleTable(leaf->estate->es_tupleTable, false);
	ExecCloseIndices(leaf->result);
	FreeExecutorState(leaf->estate);
}

/* Fetches the row of an entry; false: what is there is another, or done with. */
static bool
fetch_row(Leaf *leaf, const RelayEntry *entry)
{
	TupleTableSlot *old = leaf->old;
	ItemPointerData tid;

	ItemPointerSet(&tid, entry->row.block, entry->row.offset);
	if (entry->row.block >= leaf->nblocks || !ItemPointerIsValid(&tid) ||
		!table_tuple_fetch_row_version(leaf->rel, &tid, leaf->estate->es_snapshot, old))
		return false;
	slot_getallattrs(old);
	return DatumGetInt64(old->tts_values[leaf->seq]) == entry->row.seq &&
		memcmp(DatumGetUUIDP(old->tts_values[leaf->event_id])->data, entry->row.event_id, UUID_LEN) == 0 &&
		old->tts_isnull[leaf->published_at] && old->tts_isnull[leaf->parked_at];
}

static void
set_column(TupleTableSlot *slot, int number, Datum value)
{
	slot->tts_values[number] = value;
	slot->tts_isnull[number] = false;
}

/*
 * Asks for the place where the page will take the next row's new version, while
 * this one's is written.
 */
static void
prefetch_place(TupleTableSlot *slot)
{
	BufferHeapTupleTableSlot *old = (BufferHeapTupleTableSlot *) slot;
	Page		page;
	int			len;

	if (!TTS_IS_BUFFERTUPLE(slot))
		return;
	page = BufferGetPage(old->buffer);
	len = Min(2 * old->base.tuple->t_len, ((PageHeader) page)->pd_upper);
	relay_prefetch((char *) page + ((PageHeader) page)->pd_upper - len, len);
}

/* Writes the mark of the row that was fetched. */
static void
update_row(Leaf *leaf, const RelayEntry *entry)
{
	TupleTableSlot *old = leaf->old;
	TupleTableSlot *new = ExecClearTuple(leaf->new);
	int			natts = new->tts_tupleDescriptor->natts;

	prefetch_place(old);
	memcpy(new->tts_values, old->tts_values, sizeof(Datum) * natts);
	memcpy(new->tts_isnull, old->tts_isnull, sizeof(bool) * natts);
	set_column(new, leaf->published_at, TimestampTzGetDatum(leaf->now));
	set_column(new, leaf->partition, Int32GetDatum(entry->partition));
	set_column(new, leaf->offset, Int64GetDatum(entry->kafka_offset));
	ExecStoreVirtualTuple(new);
	ExecSimpleRelationUpdate(leaf->result, leaf->estate, NULL, old, new);
	ResetPerTupleExprContext(leaf->estate);
}

/* Marks rows at their places; gives how many, and puts the others first. */
static int
mark_at_places(Relation rel, const RelayEntry **entries, int n)
{
	Leaf		leaf;
	int			moved = 0;

	begin_leaf(&leaf, rel);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (fetch_row(&leaf, entries[i]))
			update_row(&leaf, entries[i]);
		else
		{
			const RelayEntry *entry = entries[i];

			entries[i] = entries[moved];
			entries[moved++] = entry;
		}
	}
	end_leaf(&leaf);
	return n - moved;
}

static bool
has_update_trigger(const TriggerDesc *triggers)
{
	return triggers != NULL &&
		(triggers->trig_update_before_row || triggers->trig_update_after_row ||
		 triggers->trig_update_before_statement || triggers->trig_update_after_statement);
}

/* Whether an update of the leaf does no more than we do. */
static bool
is_plain(Relation rel)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	return !has_update_trigger(rel->trigdesc) && rel->rd_rules == NULL &&
		!(constr && constr->has_generated_stored);
}

/*
 * Marks rows of one leaf as published.  Gives the number of rows that were not
 * marked: gone, marked by another hand, or not the rows that were sent.  Changes
 * the order of the entries.
 */
int
relay_outbox_mark(int leaf, const RelayEntry **entries, int n)
{
	static SPIPlanPtr by_place[IDEM_LEAVES];
	static SPIPlanPtr by_seq[IDEM_LEAVES];
	static bool failed = false; /* the last mark at places raised an error */
	Relation	rel = open_leaf(leaf);
	int			marked;
	int			left;			/* entries to be found by seq: the first ones */

	if (is_plain(rel) && !failed)
	{
		/* a row that another session changes meanwhile raises an error */
		failed = true;
		marked = mark_at_places(rel, entries, n);
		left = n - marked;
	}
	else
	{
		marked = run_mark(by_place, MARK_ROWS, leaf, entries, n);
		left = marked < n ? n : 0;
	}
	failed = false;
	table_close(rel, NoLock);
	return n - marked - run_mark(by_seq, MARK_MOVED_ROWS, leaf, entries, left);
}

/*
 * ---- marks on disk ----
 *
 * Marks are committed without waiting for the disk: events that come meanwhile
 * would wait as well, and a mark that a crash undoes is a repeat.  So until it is
 * on disk a marked row counts as one that may be repeated, like those on their
 * way.  The server's WAL writer sees to it within a second; only when there are
 * too many such rows do we wait.
 */
static XLogRecPtr marks_end = InvalidXLogRecPtr;	/* of the last commit of marks */
static int	unflushed = 0;		/* rows marked that may not be on disk */

/* Rows were marked, and the marks committed just now. */
void
relay_outbox_marked(int n)
{
	marks_end = XactLastCommitEnd;
	unflushed += n;
}

/*
 * Sees to it that no more rows than the window has can be repeated, with so many
 * on their way.
 */
void
relay_outbox_settle(int on_their_way, int window)
{
	if (unflushed == 0 || on_their_way + unflushed <= window)
		return;
	XLogFlush(marks_end);
	unflushed = 0;
}
