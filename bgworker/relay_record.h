/*-------------------------------------------------------------------------
 *
 * relay_record.h
 *		A Kafka record, as the outbox gives it and the producer takes it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_RECORD_H
#define RELAY_RECORD_H

#include <stdint.h>

/* bytes that may be absent: data NULL is not the same as length 0 */
typedef struct RelayBytes
{
	const char *data;
	int			len;
} RelayBytes;

typedef struct RelayHeader
{
	RelayBytes	name;
	RelayBytes	value;
} RelayHeader;

typedef struct RelayRecord
{
	const char *topic;
	RelayBytes	key;
	RelayBytes	value;
	int64_t		timestamp_ms;	/* Unix time */
	int			nheaders;
	RelayHeader *headers;
} RelayRecord;

#endif							/* RELAY_RECORD_H */
