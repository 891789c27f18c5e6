/*-------------------------------------------------------------------------
 *
 * relay_convert.h
 *		Making a Kafka record of a row of the outbox.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_CONVERT_H
#define RELAY_CONVERT_H

#include "datatype/timestamp.h"

#include "relay_record.h"

/* what is read of a row, in this order */
#define RELAY_COLUMNS \
	"ctid, xmin, seq, event_id, topic, partition_key, event_type, aggregate_id," \
	" payload, payload_bytes, headers, created_at, attempts"

typedef enum RelayColumn
{
	COL_CTID,
	COL_XMIN,
	COL_SEQ,
	COL_EVENT_ID,
	COL_TOPIC,
	COL_PARTITION_KEY,
	COL_EVENT_TYPE,
	COL_AGGREGATE_ID,
	COL_PAYLOAD,
	COL_PAYLOAD_BYTES,
	COL_HEADERS,
	COL_CREATED_AT,
	COL_ATTEMPTS
} RelayColumn;

extern RelayBytes relay_convert_key(const Datum *values, const bool *nulls);
extern void relay_convert(const Datum *values, const bool *nulls, int topic,
						  const char *source, TimestampTz now, RelayRecord *record);
extern int	relay_record_bytes(const RelayRecord *record);

#endif							/* RELAY_CONVERT_H */
