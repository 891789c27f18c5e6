/*-------------------------------------------------------------------------
 *
 * idem_outbox.c
 *		Writing events.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/cryptohash.h"
#include "common/hashfn.h"
#include "common/sha2.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "idem_args.h"
#include "idem_errors.h"
#include "idem_hash.h"
#include "idem_headers.h"
#include "idem_note.h"
#include "idem_retry.h"
#include "idem_uuid.h"

/* Kafka's limit */
#define TOPIC_MAX_BYTES		249

/*
 * Class of the lock on a topic and key whose events are written in order: SQL's
 * advisory lock functions use 1 and 2, and the locks on records 0x1de.
 */
#define ORDER_LOCK_CLASS	0x1df

/* how long a once_key is remembered */
#define ONCE_RETENTION		(INT64CONST(90) * USECS_PER_DAY)

/* positions of the arguments of outbox_emit */
enum
{
	ARG_TOPIC,
	ARG_KEY,
	ARG_EVENT_TYPE,
	ARG_PAYLOAD,
	ARG_HEADERS,
	ARG_ONCE_KEY,
	ARG_AGGREGATE_TYPE,
	ARG_AGGREGATE_ID,
	ARG_PAYLOAD_BYTES,
	NCONTENT,					/* so many say what the event is */
	ARG_ORDERED = NCONTENT
};

static bool
topic_ok(const text *topic)
{
	const char *s = VARDATA_ANY(topic);
	int			len = VARSIZE_ANY_EXHDR(topic);

	if (len < 1 || len > TOPIC_MAX_BYTES)
		return false;
	if (s[0] == '.' && (len == 1 || (len == 2 && s[1] == '.')))
		return false;
	for (int i = 0; i < len; i++)
	{
		char		c = s[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-'))
			return false;
	}
	return true;
}

/*
 * kafka_topic_valid(topic text) -> boolean
 *
 * Whether Kafka takes this topic name: 1 to 249 of a-z A-Z 0-9 . _ - and
 * neither "." nor "..".  Immutable; stands in a CHECK of idem.topic.
 */
PG_FUNCTION_INFO_V1(kafka_topic_valid);
Datum
kafka_topic_valid(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(topic_ok(PG_GETARG_TEXT_PP(0)));
}

/*
 * Refuses what is no event.  Neither payload nor headers are told: they may be
 * confidential, and the message goes to the server's log.
 */
static void
check_event(int sqlstate, text *topic, bool both_payloads, Jsonb *headers)
{
	if (!topic_ok(topic))
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("\"%s\" is not the name of a Kafka topic", text_to_cstring(topic)),
				 errhint("Use 1 to 249 characters of a-z, A-Z, 0-9, dot, underscore and hyphen.")));
	if (both_payloads)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("payload and payload_bytes must not both be given"),
				 errhint("Use payload for JSON and payload_bytes for everything else.")));
	if (headers != NULL && !idem_headers_ok(headers, false))
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("headers are not a list of pairs"),
				 errhint("Give [[\"name\", \"value\"], ...]; names are not empty, values are strings or null.")));
}

/*
 * outbox_valid(seq, slot, published_at, parked_at, topic, payload, payload_bytes,
 *				headers) -> true
 *
 * The CHECK of the outbox: refuses a row that is no event (23514), and notes an
 * unpublished or a parked one for the relay (idem_note.c).  It is one function,
 * since the server parses the expressions of a table's CHECKs for each statement.
 */
PG_FUNCTION_INFO_V1(outbox_valid);
Datum
outbox_valid(PG_FUNCTION_ARGS)
{
	if (!PG_ARGISNULL(4))
		check_event(ERRCODE_CHECK_VIOLATION, PG_GETARG_TEXT_PP(4),
					!PG_ARGISNULL(5) && !PG_ARGISNULL(6),
					PG_ARGISNULL(7) ? NULL : PG_GETARG_JSONB_P(7));
	if (PG_ARGISNULL(2) && PG_ARGISNULL(3) && !PG_ARGISNULL(0) && !PG_ARGISNULL(1))
		idem_note_row(PG_GETARG_INT64(0), PG_GETARG_INT16(1));
	if (!PG_ARGISNULL(3))
		idem_note_holds();
	PG_RETURN_BOOL(true);
}

/*
 * parked_deleted() -> trigger
 *
 * Trigger of the outbox, for DELETE of a parked row and for TRUNCATE: the relay,
 * once the transaction has committed, lets the keys go that such rows held.
 */
PG_FUNCTION_INFO_V1(parked_deleted);
Datum
parked_deleted(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("parked_deleted() must be called as a trigger")));
	idem_note_holds();
	return PointerGetDatum(NULL);
}

/* Refuses arguments that no row of the outbox could hold. */
static void
check_emit_args(FunctionCallInfo fcinfo)
{
	idem_require_arg(fcinfo, ARG_TOPIC, "topic");
	check_event(ERRCODE_INVALID_PARAMETER_VALUE, PG_GETARG_TEXT_PP(ARG_TOPIC),
				!PG_ARGISNULL(ARG_PAYLOAD) && !PG_ARGISNULL(ARG_PAYLOAD_BYTES),
				PG_ARGISNULL(ARG_HEADERS) ? NULL : PG_GETARG_JSONB_P(ARG_HEADERS));
	idem_require_arg(fcinfo, ARG_ORDERED, "ordered");
	if (PG_GETARG_BOOL(ARG_ORDERED) && PG_ARGISNULL(ARG_KEY))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ordered needs a key"),
				 errhint("Events without a key have no order.")));
}

/* Adds one part to a digest, framed so that no two lists of parts are alike. */
static void
digest_part(pg_cryptohash_ctx *ctx, bool isnull, const void *data, Size len)
{
	uint64		frame = isnull ? PG_UINT64_MAX : (uint64) len;
	uint8		bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8) (frame >> (8 * (7 - i)));
	if (pg_cryptohash_update(ctx, bytes, sizeof(bytes)) < 0 ||
		(!isnull && pg_cryptohash_update(ctx, data, len) < 0))
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
}

/* SHA-256 of what an event says: neither its once_key nor how it is written. */
static bytea *
emit_digest(FunctionCallInfo fcinfo)
{
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	if (ctx == NULL || pg_cryptohash_init(ctx) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
	for (int arg = 0; arg < NCONTENT; arg++)
	{
		if (arg == ARG_ONCE_KEY)
			continue;
		if (PG_ARGISNULL(arg))
			digest_part(ctx, true, NULL, 0);
		else if (arg == ARG_PAYLOAD || arg == ARG_HEADERS)
		{
			uint8		hash[PG_SHA256_DIGEST_LENGTH];

			idem_hash_jsonb(PG_GETARG_JSONB_P(arg), hash);
			digest_part(ctx, false, hash, sizeof(hash));
		}
		else
		{
			struct varlena *value = PG_GETARG_VARLENA_PP(arg);

			digest_part(ctx, false, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
		}
	}
	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	if (pg_cryptohash_final(ctx, (uint8 *) VARDATA(result), PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
	pg_cryptohash_free(ctx);
	return result;
}

/* Prepares a statement for the life of the session. */
static void
keep_plan(SPIPlanPtr *plan, const char *sql, int nargs, Oid *types)
{
	if (*plan != NULL)
		return;
	*plan = SPI_prepare(sql, nargs, types);
	if (*plan == NULL)
		elog(ERROR, "could not prepare a statement: %s", SPI_result_code_string(SPI_result));
	SPI_keepplan(*plan);
}

/*
 * Takes a once_key for a new event.  False when the same fact was stated
 * before: *event_id then is the first event's.  Waits for a concurrent
 * emission of the fact; an expired fact may be stated anew.
 */
static bool
take_once_key(text *once_key, bytea *digest, pg_uuid_t *event_id)
{
	static SPIPlanPtr take = NULL;
	static SPIPlanPtr look = NULL;
	Oid			types[5] = {TEXTOID, UUIDOID, BYTEAOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	TimestampTz now = GetCurrentTimestamp();
	Datum		values[5];
	bytea	   *first;
	bool		isnull;

	keep_plan(&take,
			  "INSERT INTO idem.outbox_once AS o (once_key, event_id, digest, expires_at)"
			  " VALUES ($1, $2, $3, $4)"
			  " ON CONFLICT (once_key) DO UPDATE SET event_id = EXCLUDED.event_id,"
			  " digest = EXCLUDED.digest, expires_at = EXCLUDED.expires_at"
			  " WHERE o.expires_at OPERATOR(pg_catalog.<=) $5", 5, types);
	keep_plan(&look,
			  "SELECT event_id, digest FROM idem.outbox_once"
			  " WHERE once_key OPERATOR(pg_catalog.=) $1", 1, types);

	values[0] = PointerGetDatum(once_key);
	values[1] = UUIDPGetDatum(event_id);
	values[2] = PointerGetDatum(digest);
	values[3] = TimestampTzGetDatum(now + ONCE_RETENTION);
	values[4] = TimestampTzGetDatum(now);
	if (SPI_execute_plan(take, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "unexpected result of an insert into outbox_once");
	if (SPI_processed == 1)
		return true;

	if (SPI_execute_plan(look, values, NULL, false, 0) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not read the first event of a once_key");
	*event_id = *DatumGetUUIDP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	first = DatumGetByteaPP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	if (VARSIZE_ANY_EXHDR(first) != VARSIZE_ANY_EXHDR(digest) ||
		memcmp(VARDATA_ANY(first), VARDATA_ANY(digest), VARSIZE_ANY_EXHDR(first)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_ONCE_KEY_REUSED),
				 errmsg("once_key \"%s\" was used with other content", text_to_cstring(once_key)),
				 errdetail("The first event has the id %s.",
						   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id)))),
				 errhint("A once_key names one fact. Use another for another fact.")));
	return false;
}

/*
 * Waits until no other transaction is writing ordered events of the topic and
 * key, and keeps others waiting until this one ends.  The seq is drawn after
 * that, so the transactions commit in the order of their seq.
 */
static void
lock_order(const text *topic, const text *key)
{
	LOCKTAG		tag;
	uint64		hash;

	hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(topic), VARSIZE_ANY_EXHDR(topic), 0);
	hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), hash);
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, ORDER_LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* Writes the row. */
static void
insert_event(FunctionCallInfo fcinfo, pg_uuid_t *event_id)
{
	static SPIPlanPtr plan = NULL;
	static const int args[] = {ARG_TOPIC, ARG_KEY, ARG_EVENT_TYPE, ARG_PAYLOAD,
	ARG_HEADERS, ARG_AGGREGATE_TYPE, ARG_AGGREGATE_ID, ARG_PAYLOAD_BYTES};
	Oid			types[] = {UUIDOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID, JSONBOID, TEXTOID, TEXTOID, BYTEAOID};
	Datum		values[1 + lengthof(args)];
	char		nulls[1 + lengthof(args)];

	keep_plan(&plan,
			  "INSERT INTO idem.outbox (event_id, topic, partition_key, event_type, payload,"
			  " headers, aggregate_type, aggregate_id, payload_bytes)"
			  " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)", lengthof(types), types);

	values[0] = UUIDPGetDatum(event_id);
	nulls[0] = ' ';
	for (int i = 0; i < (int) lengthof(args); i++)
	{
		values[i + 1] = PG_GETARG_DATUM(args[i]);
		nulls[i + 1] = PG_ARGISNULL(args[i]) ? 'n' : ' ';
	}
	if (SPI_execute_plan(plan, values, nulls, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "unexpected result of an insert into the outbox");
}

/*
 * outbox_emit(topic, key, event_type, payload, headers, once_key,
 *			   aggregate_type, aggregate_id, payload_bytes, ordered) -> uuid
 *
 * Writes an event in the caller's transaction and gives its id.  With a
 * once_key, a repeat of the same fact writes nothing and gives the first
 * event's id; it waits for a concurrent emission of the fact to end.  Ordered,
 * it waits for other transactions with ordered events of the key to end.
 *
 * Raises 22004 (NULL topic), 22023 (topic, headers or once_key out of their
 * limits, or both payloads given), ID005 (once_key used with other content),
 * 40001 (with a once_key, under REPEATABLE READ or SERIALIZABLE), 55P03
 * (lock_timeout).
 */
PG_FUNCTION_INFO_V1(outbox_emit);
Datum
outbox_emit(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *event_id = palloc(sizeof(pg_uuid_t));
	IdemRetryHint hint;

	check_emit_args(fcinfo);
	idem_uuid7_make(event_id);

	SPI_connect();
	idem_retry_hint_push(&hint);
	if (PG_ARGISNULL(ARG_ONCE_KEY) ||
		take_once_key(idem_name_arg(fcinfo, ARG_ONCE_KEY, "once_key"), emit_digest(fcinfo), event_id))
	{
		if (PG_GETARG_BOOL(ARG_ORDERED))
			lock_order(PG_GETARG_TEXT_PP(ARG_TOPIC), PG_GETARG_TEXT_PP(ARG_KEY));
		insert_event(fcinfo, event_id);
	}
	idem_retry_hint_pop(&hint);
	SPI_finish();

	PG_RETURN_UUID_P(event_id);
}
