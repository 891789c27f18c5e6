/*-------------------------------------------------------------------------
 *
 * relay_convert.c
 *		Making a Kafka record of a row of the outbox.
 *
 * This runs for every event.  What is the same from one to the next is made
 * once, and digits are written here, since the server's own printing takes
 * longer than all the rest.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "relay_convert.h"
#include "relay_json.h"
#include "relay_retention.h"
#include "relay_rules.h"
#include "relay_topics.h"

/* milliseconds between 1970 and 2000 */
#define UNIX_TO_POSTGRES_MS \
	((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * INT64CONST(86400000))

/* our own headers: specversion, id, source, type, time, subject */
#define CE_HEADERS		6

#define UUID_TEXT_LEN	36
#define RFC3339_LEN		27		/* 2026-11-30T12:00:00.123456Z */
#define RFC3339_DATE_LEN	11	/* with the T */

static RelayBytes
bytes_of(const char *data, int len)
{
	RelayBytes	bytes = {data, len};

	return bytes;
}

/* Text as Kafka gets it: UTF-8, whatever the database's encoding. */
static RelayBytes
utf8_bytes(const char *s, int len)
{
	const char *utf8 = pg_server_to_any(s, len, PG_UTF8);

	return bytes_of(utf8, utf8 == s ? len : (int) strlen(utf8));
}

static RelayBytes
text_column(const Datum *values, const bool *nulls, RelayColumn column)
{
	text	   *t;

	if (nulls[column])
		return bytes_of(NULL, 0);
	t = DatumGetTextPP(values[column]);
	return utf8_bytes(VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
}

/* The value of the record: JSON as text, bytes as they are, or neither. */
static RelayBytes
payload(const Datum *values, const bool *nulls)
{
	if (!nulls[COL_PAYLOAD])
	{
		StringInfoData json;

		initStringInfo(&json);
		relay_json_text(&json, DatumGetJsonbP(values[COL_PAYLOAD]), RELAY_WINDOW_BYTES);
		return utf8_bytes(json.data, json.len);
	}
	if (!nulls[COL_PAYLOAD_BYTES])
	{
		bytea	   *b;

		/* not even to be fetched: it may be a gigabyte */
		if (toast_raw_datum_size(values[COL_PAYLOAD_BYTES]) > RELAY_WINDOW_BYTES)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("payload of an event is too large to be sent")));
		b = DatumGetByteaPP(values[COL_PAYLOAD_BYTES]);
		return bytes_of(VARDATA_ANY(b), VARSIZE_ANY_EXHDR(b));
	}
	return bytes_of(NULL, 0);
}

/* ---- headers ---- */

static void
add_header(RelayRecord *record, const char *name, int name_len, RelayBytes value)
{
	RelayHeader *header = &record->headers[record->nheaders++];

	header->name = bytes_of(name, name_len);
	header->value = value;
}

#define ADD_HEADER(record, name, value) add_header(record, name, sizeof(name) - 1, value)

static RelayBytes
uuid_text(const pg_uuid_t *uuid)
{
	static const char digits[] = "0123456789abcdef";
	char	   *text = palloc(UUID_TEXT_LEN);
	char	   *p = text;

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = digits[uuid->data[i] >> 4];
		*p++ = digits[uuid->data[i] & 0xf];
	}
	return bytes_of(text, UUID_TEXT_LEN);
}

/* Writes a number with leading zeros; gives where it ends. */
static char *
put_digits(char *to, int number, int ndigits)
{
	for (int i = ndigits - 1; i >= 0; i--)
	{
		to[i] = (char) ('0' + number % 10);
		number /= 10;
	}
	return to + ndigits;
}

/* The date of a day, with the T; false: RFC 3339 has no way to write it. */
static bool
put_date(char *to, int64 day)
{
	static int64 last_day = PG_INT64_MIN;
	static char last_date[RFC3339_DATE_LEN];

	if (day != last_day)
	{
		struct pg_tm tm;
		fsec_t		fsec;
		char	   *p = last_date;

		last_day = PG_INT64_MIN;
		if (timestamp2tm(day * USECS_PER_DAY, NULL, &tm, &fsec, NULL, NULL) != 0 ||
			tm.tm_year < 1 || tm.tm_year > 9999)
			return false;
		p = put_digits(p, tm.tm_year, 4);
		*p++ = '-';
		p = put_digits(p, tm.tm_mon, 2);
		*p++ = '-';
		p = put_digits(p, tm.tm_mday, 2);
		*p = 'T';
		last_day = day;
	}
	memcpy(to, last_date, RFC3339_DATE_LEN);
	return true;
}

/* A time as RFC 3339 wants it, in UTC; a year that it can't express is now's. */
static RelayBytes
rfc3339(TimestampTz time, TimestampTz now)
{
	char	   *text = palloc(RFC3339_LEN);
	char	   *p = text + RFC3339_DATE_LEN;
	int64		day;
	int64		usec;
	int			second;

	if (TIMESTAMP_NOT_FINITE(time))
		time = now;
	for (;;)
	{
		day = time / USECS_PER_DAY - (time % USECS_PER_DAY < 0);
		if (put_date(text, day) || time == now)
			break;
		time = now;
	}
	usec = time - day * USECS_PER_DAY;
	second = (int) (usec / USECS_PER_SEC);
	p = put_digits(p, second / SECS_PER_HOUR, 2);
	*p++ = ':';
	p = put_digits(p, second / SECS_PER_MINUTE % MINS_PER_HOUR, 2);
	*p++ = ':';
	p = put_digits(p, second % SECS_PER_MINUTE, 2);
	*p++ = '.';
	p = put_digits(p, (int) (usec % USECS_PER_SEC), 6);
	*p = 'Z';
	return bytes_of(text, RFC3339_LEN);
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

		if (token != WJB_ELEM)
			continue;
		if (is_name)
			header->name = utf8_bytes(v.val.string.val, v.val.string.len);
		else
		{
			header->value = v.type == jbvNull ? bytes_of(NULL, 0) : utf8_bytes(v.val.string.val, v.val.string.len);
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
make_headers(const Datum *values, const bool *nulls, const char *source,
			 TimestampTz now, RelayRecord *record)
{
	RelayBytes	type = text_column(values, nulls, COL_EVENT_TYPE);
	RelayBytes	subject = text_column(values, nulls, COL_AGGREGATE_ID);
	Jsonb	   *own = nulls[COL_HEADERS] ? NULL : DatumGetJsonbP(values[COL_HEADERS]);

	record->nheaders = 0;
	record->headers = palloc(sizeof(RelayHeader) * (CE_HEADERS + (own ? JB_ROOT_COUNT(own) : 0)));
	ADD_HEADER(record, "ce_specversion", bytes_of("1.0", 3));
	ADD_HEADER(record, "ce_id", uuid_text(DatumGetUUIDP(values[COL_EVENT_ID])));
	ADD_HEADER(record, "ce_source", bytes_of(source, (int) strlen(source)));
	/* the type is required there; an event without one is known by its topic */
	ADD_HEADER(record, "ce_type", type.len > 0 ? type : bytes_of(record->topic, (int) strlen(record->topic)));
	ADD_HEADER(record, "ce_time", rfc3339(DatumGetTimestampTz(values[COL_CREATED_AT]), now));
	if (subject.len > 0)
		ADD_HEADER(record, "ce_subject", subject);
	if (own)
		own_headers(record, own);
}

/* ---- the record ---- */

/* What a record counts in the window. */
int
relay_record_bytes(const RelayRecord *record)
{
	int64		bytes = RELAY_ROW_OVERHEAD + record->key.len + record->value.len;

	for (int i = 0; i < record->nheaders; i++)
		bytes += record->headers[i].name.len + record->headers[i].value.len;
	return (int) Min(bytes, PG_INT32_MAX);
}

/*
 * The timestamp of a record.  Neither infinity, nor a clock that runs ahead, nor
 * a time before Unix's began (0 is no timestamp to the client library) makes one
 * for Kafka: the time of sending then does.
 */
static int64
record_timestamp(int topic, const char *name, TimestampTz created_at, TimestampTz now)
{
	if (relay_topics_get(name)->send_time ||
		TIMESTAMP_NOT_FINITE(created_at) || created_at > now ||
		created_at < -UNIX_TO_POSTGRES_MS * 1000 + 1000 ||
		relay_retention_is_old(topic, (now - created_at) / 1000))
		created_at = now;
	return created_at / 1000 + UNIX_TO_POSTGRES_MS;
}

/* The key of the record.  Raises an error when it has no UTF-8 form. */
RelayBytes
relay_convert_key(const Datum *values, const bool *nulls)
{
	return text_column(values, nulls, COL_PARTITION_KEY);
}

/*
 * Makes a Kafka record of a row, but for its topic, which is set and has a
 * number, and its key.  It points into the row and into the current memory context.
 * Raises an error when the row can't be one: a character without a UTF-8 form, a
 * payload that is too large.
 */
void
relay_convert(const Datum *values, const bool *nulls, int topic,
			  const char *source, TimestampTz now, RelayRecord *record)
{
	record->value = payload(values, nulls);
	record->timestamp_ms = record_timestamp(topic, record->topic, DatumGetTimestampTz(values[COL_CREATED_AT]), now);
	make_headers(values, nulls, source, now, record);
}
