/*-------------------------------------------------------------------------
 *
 * relay_outbox.c
 *		The outbox as the relay uses it: reading rows, marking them.
 *
 * A leaf is always addressed by its own name: through the root, a statement
 * would lock every leaf and every index.  The worker's search_path is pinned to
 * pg_catalog, and leaves' names are made from their number alone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "idem_shared.h"
#include "relay_outbox.h"
#include "relay_topics.h"

/* milliseconds between 1970 and 2000 */
#define UNIX_TO_POSTGRES_MS \
	((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * INT64CONST(86400000))

/* numbers with more digits than this before or after the point, and their text */
#define LONG_NUMBER_DIGITS	1000
#define LONG_NUMBER_BYTES	150000

/* our own headers: specversion, id, source, type, time, subject */
#define CE_HEADERS		6

#define READ_ROWS \
	"SELECT ctid, seq, event_id, topic, partition_key, event_type, aggregate_id," \
	" payload, payload_bytes, headers, created_at FROM ONLY idem.outbox_%02d" \
	" WHERE seq BETWEEN $1 AND $2 AND published_at IS NULL AND parked_at IS NULL" \
	" ORDER BY seq LIMIT $3"

#define FIRST_ROW \
	"SELECT seq FROM ONLY idem.outbox_%02d" \
	" WHERE seq >= $1 AND published_at IS NULL AND parked_at IS NULL ORDER BY seq LIMIT 1"

/* A row is marked only if it is the one that was sent, and unpublished still. */
#define MARK_ROWS \
	"UPDATE ONLY idem.outbox_%02d AS o SET published_at = clock_timestamp()," \
	" kafka_partition = m.partition, kafka_offset = m.kafka_offset" \
	" FROM unnest($1::tid[], $2::bigint[], $3::uuid[], $4::integer[], $5::bigint[])" \
	" AS m (tid, seq, event_id, partition, kafka_offset)" \
	" WHERE o.ctid = m.tid AND o.seq = m.seq AND o.event_id = m.event_id" \
	" AND o.published_at IS NULL AND o.parked_at IS NULL"

/* The same for rows that have moved since they were read. */
#define MARK_MOVED_ROWS \
	"UPDATE ONLY idem.outbox_%02d AS o SET published_at = clock_timestamp()," \
	" kafka_partition = m.partition, kafka_offset = m.kafka_offset" \
	" FROM unnest($1::tid[], $2::bigint[], $3::uuid[], $4::integer[], $5::bigint[])" \
	" AS m (tid, seq, event_id, partition, kafka_offset)" \
	" WHERE o.seq = m.seq AND o.event_id = m.event_id" \
	" AND o.published_at IS NULL AND o.parked_at IS NULL"

/* the row that is being made into a record; leaf -1: none */
static RelayRow current_row = {.leaf = -1};

/* positions of READ_ROWS */
enum
{
	COL_CTID = 1,
	COL_SEQ,
	COL_EVENT_ID,
	COL_TOPIC,
	COL_PARTITION_KEY,
	COL_EVENT_TYPE,
	COL_AGGREGATE_ID,
	COL_PAYLOAD,
	COL_PAYLOAD_BYTES,
	COL_HEADERS,
	COL_CREATED_AT
};

/* ---- transactions ---- */

/*
 * Begins a unit of work.  Gives the extension's oid, which is another after
 * DROP and CREATE, and invalid when there is none.
 *
 * The root is locked before the snapshot is taken: if the tables were rewritten
 * in between, the snapshot would show them empty.
 */
Oid
relay_outbox_begin(void)
{
	Oid			extension;
	Oid			root = InvalidOid;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	pgstat_report_activity(STATE_RUNNING, "publishing the outbox");
	extension = get_extension_oid("idem", true);
	if (OidIsValid(extension))
		root = RangeVarGetRelid(makeRangeVar("idem", "outbox", -1), AccessShareLock, true);
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	return OidIsValid(root) ? extension : InvalidOid;
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

/* Runs a statement about a leaf, prepared at its first use. */
static void
run(SPIPlanPtr *plans, const char *sql, int leaf, int nargs, Oid *types, Datum *values,
	bool read_only, int expected)
{
	int			rc;

	if (plans[leaf] == NULL)
	{
		SPIPlanPtr	plan = SPI_prepare(psprintf(sql, leaf), nargs, types);

		if (plan == NULL)
			elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
		SPI_keepplan(plan);
		plans[leaf] = plan;
	}
	rc = SPI_execute_plan(plans[leaf], values, NULL, read_only, 0);
	if (rc != expected)
		elog(ERROR, "unexpected result of a statement on the outbox: %s", SPI_result_code_string(rc));
}

/* ---- reading ---- */

/* Finds the first unpublished row of a leaf, from a seq on. */
bool
relay_outbox_first(const RelayRead *read, int64 *seq)
{
	static SPIPlanPtr plans[IDEM_LEAVES];
	Oid			types[1] = {INT8OID};
	Datum		values[1];
	bool		isnull;

	values[0] = Int64GetDatum(read->from);
	run(plans, FIRST_ROW, read->leaf, 1, types, values, true, SPI_OK_SELECT);
	if (SPI_processed == 0)
		return false;
	*seq = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	return true;
}

/*
 * Flushes the log as far as it is written.  A row can be visible before its
 * commit is on disk (synchronous_commit = off); if it were published then, a
 * crash could leave an event of a transaction that never was.
 */
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

/* Text as Kafka gets it: UTF-8, whatever the database's encoding. */
static RelayBytes
utf8_bytes(const char *s, int len)
{
	RelayBytes	bytes;

	bytes.data = pg_server_to_any(s, len, PG_UTF8);
	bytes.len = bytes.data == s ? len : (int) strlen(bytes.data);
	return bytes;
}

static RelayBytes
text_column(HeapTuple tuple, int col)
{
	RelayBytes	none = {NULL, 0};
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, SPI_tuptable->tupdesc, col, &isnull);
	text	   *t;

	if (isnull)
		return none;
	t = DatumGetTextPP(value);
	return utf8_bytes(VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
}

/* Whether the text of a number is much longer than its few stored bytes. */
static bool
is_long_number(Datum number)
{
	static Numeric limit = NULL;

	if (limit == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		limit = DatumGetNumeric(DirectFunctionCall3(numeric_in, CStringGetDatum("1e" CppAsString2(LONG_NUMBER_DIGITS)),
													ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
		MemoryContextSwitchTo(old_context);
	}
	return DatumGetInt32(DirectFunctionCall1(numeric_scale, number)) > LONG_NUMBER_DIGITS ||
		DatumGetBool(DirectFunctionCall2(numeric_gt, DirectFunctionCall1(numeric_abs, number), NumericGetDatum(limit)));
}

/*
 * Refuses JSON whose text would be huge.  A number like 1e131071 takes a few
 * bytes in the table and 131,072 in text, so the size of a value does not tell.
 */
static void
check_payload(Jsonb *payload)
{
	JsonbIterator *it = JsonbIteratorInit(&payload->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	int64		bytes = VARSIZE(payload);

	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
	{
		if ((token == WJB_ELEM || token == WJB_VALUE) && v.type == jbvNumeric &&
			is_long_number(NumericGetDatum(v.val.numeric)))
			bytes += LONG_NUMBER_BYTES;
		if (bytes > RELAY_WINDOW_BYTES)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("payload of an event is too large to be sent")));
	}
}

/* The value of the record: JSON as text, bytes as they are, or neither. */
static RelayBytes
payload(HeapTuple tuple)
{
	RelayBytes	bytes = {NULL, 0};
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, SPI_tuptable->tupdesc, COL_PAYLOAD, &isnull);
	StringInfoData json;

	if (!isnull)
	{
		Jsonb	   *jb = DatumGetJsonbP(value);

		check_payload(jb);
		initStringInfo(&json);
		JsonbToCString(&json, &jb->root, VARSIZE(jb));
		return utf8_bytes(json.data, json.len);
	}
	value = SPI_getbinval(tuple, SPI_tuptable->tupdesc, COL_PAYLOAD_BYTES, &isnull);
	if (!isnull)
	{
		bytea	   *b = DatumGetByteaPP(value);

		bytes.data = VARDATA_ANY(b);
		bytes.len = VARSIZE_ANY_EXHDR(b);
	}
	return bytes;
}

static void
add_header(RelayRecord *record, const char *name, RelayBytes value)
{
	RelayHeader *header = &record->headers[record->nheaders++];

	header->name.data = name;
	header->name.len = strlen(name);
	header->value = value;
}

static RelayBytes
cstring_bytes(const char *s)
{
	RelayBytes	bytes = {s, (int) strlen(s)};

	return bytes;
}

/* A time as RFC 3339 wants it, in UTC; a year that it can't express is now's. */
static char *
rfc3339(TimestampTz time, TimestampTz now)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (TIMESTAMP_NOT_FINITE(time) || timestamp2tm(time, NULL, &tm, &fsec, NULL, NULL) != 0 ||
		tm.tm_year < 1 || tm.tm_year > 9999)
		timestamp2tm(now, NULL, &tm, &fsec, NULL, NULL);
	return psprintf("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ",
					tm.tm_year, tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int) fsec);
}

/* The row's own headers, [[name, value or null], ...], as the table checked. */
static void
own_headers(RelayRecord *record, Jsonb *headers)
{
	JsonbIterator *it = JsonbIteratorInit(&headers->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	bool		is_name = true;

	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
	{
		RelayHeader *header = &record->headers[record->nheaders];
		RelayBytes	none = {NULL, 0};

		if (token != WJB_ELEM)
			continue;
		if (is_name)
			header->name = utf8_bytes(v.val.string.val, v.val.string.len);
		else
		{
			header->value = v.type == jbvNull ? none : utf8_bytes(v.val.string.val, v.val.string.len);
			record->nheaders++;
		}
		is_name = !is_name;
	}
}

/*
 * The headers of the record: CloudEvents 1.0 in binary mode (Kafka protocol
 * binding, section 3.2.3), then the row's own.
 */
static void
make_headers(HeapTuple tuple, RelayRecord *record, const char *source,
			 const pg_uuid_t *event_id, TimestampTz created_at, TimestampTz now)
{
	TupleDesc	tupdesc = SPI_tuptable->tupdesc;
	RelayBytes	type = text_column(tuple, COL_EVENT_TYPE);
	RelayBytes	subject = text_column(tuple, COL_AGGREGATE_ID);
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, tupdesc, COL_HEADERS, &isnull);
	Jsonb	   *own = isnull ? NULL : DatumGetJsonbP(value);

	record->nheaders = 0;
	record->headers = palloc(sizeof(RelayHeader) * (CE_HEADERS + (own ? JB_ROOT_COUNT(own) : 0)));
	add_header(record, "ce_specversion", cstring_bytes("1.0"));
	add_header(record, "ce_id", cstring_bytes(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id)))));
	add_header(record, "ce_source", cstring_bytes(source));
	/* the type is required there; an event without one is known by its topic */
	add_header(record, "ce_type", type.data && type.len > 0 ? type : cstring_bytes(record->topic));
	add_header(record, "ce_time", cstring_bytes(rfc3339(created_at, now)));
	if (subject.data && subject.len > 0)
		add_header(record, "ce_subject", subject);
	if (own)
		own_headers(record, own);
}

static int
record_bytes(const RelayRecord *record)
{
	int64		bytes = RELAY_ROW_OVERHEAD + record->key.len + record->value.len;

	for (int i = 0; i < record->nheaders; i++)
		bytes += record->headers[i].name.len + record->headers[i].value.len;
	return (int) Min(bytes, PG_INT32_MAX);
}

/*
 * The timestamp of a record.  Neither infinity nor a clock that runs ahead makes
 * a time for Kafka.
 */
static int64
record_timestamp(const char *topic, TimestampTz created_at, TimestampTz now)
{
	if (relay_topics_get(topic)->send_time ||
		TIMESTAMP_NOT_FINITE(created_at) || created_at > now)
		created_at = now;
	return Max(created_at / 1000 + UNIX_TO_POSTGRES_MS, 0);
}

/* Turns a row that was read into a row of the rules and a Kafka record. */
static void
make_record(HeapTuple tuple, int leaf, const char *source, TimestampTz now,
			RelayRow *row, RelayRecord *record)
{
	TupleDesc	tupdesc = SPI_tuptable->tupdesc;
	bool		isnull;
	ItemPointer tid = (ItemPointer) DatumGetPointer(SPI_getbinval(tuple, tupdesc, COL_CTID, &isnull));
	pg_uuid_t  *event_id = DatumGetUUIDP(SPI_getbinval(tuple, tupdesc, COL_EVENT_ID, &isnull));
	TimestampTz created_at = DatumGetTimestampTz(SPI_getbinval(tuple, tupdesc, COL_CREATED_AT, &isnull));

	row->leaf = leaf;
	row->seq = DatumGetInt64(SPI_getbinval(tuple, tupdesc, COL_SEQ, &isnull));
	row->block = ItemPointerGetBlockNumber(tid);
	row->offset = ItemPointerGetOffsetNumber(tid);
	memcpy(row->event_id, event_id->data, sizeof(row->event_id));

	record->topic = TextDatumGetCString(SPI_getbinval(tuple, tupdesc, COL_TOPIC, &isnull));
	record->key = text_column(tuple, COL_PARTITION_KEY);
	record->value = payload(tuple);
	record->timestamp_ms = record_timestamp(record->topic, created_at, now);
	make_headers(tuple, record, source, event_id, created_at, now);
	row->bytes = record_bytes(record);
}

/*
 * Reads rows in order of seq and gives each to the sink, until it wants no
 * more.  Gives the number of rows that there were.
 */
int
relay_outbox_read(const RelayRead *read, const char *source, RelayRowSink sink, void *arg)
{
	static SPIPlanPtr plans[IDEM_LEAVES];
	Oid			types[3] = {INT8OID, INT8OID, INT4OID};
	Datum		values[3];
	int			n;
	TimestampTz now = GetCurrentTimestamp();
	MemoryContext row_context;
	MemoryContext old_context;

	values[0] = Int64GetDatum(read->from);
	values[1] = Int64GetDatum(read->upto);
	values[2] = Int32GetDatum(read->limit);
	run(plans, READ_ROWS, read->leaf, 3, types, values, true, SPI_OK_SELECT);
	n = (int) SPI_processed;
	if (n == 0)
		return 0;

	flush_log();
	IDEM_TEST_POINT("relay-read");

	row_context = AllocSetContextCreate(CurrentMemoryContext, "idem relay row", ALLOCSET_DEFAULT_SIZES);
	old_context = MemoryContextSwitchTo(row_context);
	for (int i = 0; i < n; i++)
	{
		RelayRecord record;
		bool		more;

		CHECK_FOR_INTERRUPTS();
		make_record(SPI_tuptable->vals[i], read->leaf, source, now, &current_row, &record);
		more = sink(arg, &current_row, &record);
		current_row.leaf = -1;
		if (!more)
			break;
		MemoryContextReset(row_context);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(row_context);
	return n;
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

/* ---- marking ---- */

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
	bool	   *no_offset = palloc(sizeof(bool) * n);
	int			lower_bound = 1;

	for (int i = 0; i < n; i++)
	{
		const RelayEntry *entry = entries[i];

		ItemPointerSet(&tids[i], entry->row.block, entry->row.offset);
		tid[i] = PointerGetDatum(&tids[i]);
		seq[i] = Int64GetDatum(entry->row.seq);
		event_id[i] = PointerGetDatum(entry->row.event_id);
		partition[i] = Int32GetDatum(entry->partition);
		offset[i] = Int64GetDatum(entry->kafka_offset);
		no_offset[i] = entry->kafka_offset < 0;
	}
	arrays[0] = PointerGetDatum(construct_array(tid, n, TIDOID, sizeof(ItemPointerData), false, TYPALIGN_SHORT));
	arrays[1] = PointerGetDatum(construct_array(seq, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	arrays[2] = PointerGetDatum(construct_array(event_id, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
	arrays[3] = PointerGetDatum(construct_array(partition, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	arrays[4] = PointerGetDatum(construct_md_array(offset, no_offset, 1, &n, &lower_bound, INT8OID,
												   sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * Marks rows of one leaf as published.  Gives the number of rows that were not
 * marked: gone, marked by another hand, or not the rows that were sent.
 */
int
relay_outbox_mark(int leaf, const RelayEntry **entries, int n)
{
	static SPIPlanPtr by_place[IDEM_LEAVES];
	static SPIPlanPtr by_seq[IDEM_LEAVES];
	Oid			types[5] = {TIDARRAYOID, INT8ARRAYOID, UUIDARRAYOID, INT4ARRAYOID, INT8ARRAYOID};
	Datum		arrays[5];
	int			marked;

	mark_arrays(entries, n, arrays);
	run(by_place, MARK_ROWS, leaf, 5, types, arrays, false, SPI_OK_UPDATE);
	marked = (int) SPI_processed;
	if (marked < n)
	{
		run(by_seq, MARK_MOVED_ROWS, leaf, 5, types, arrays, false, SPI_OK_UPDATE);
		marked += (int) SPI_processed;
	}
	return n - marked;
}
