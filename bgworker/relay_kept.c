/*-------------------------------------------------------------------------
 *
 * relay_kept.c
 *		Records of rows that wait for another one of their key.
 *
 * They are kept by the place of the row's entry in the rules' table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "relay_kept.h"
#include "relay_rules.h"

static RelayRecord *kept[RELAY_ENTRIES];
static MemoryContext kept_context = NULL;
static bool any = false;

static RelayBytes
copy_bytes(RelayBytes bytes)
{
	if (bytes.data != NULL)
	{
		char	   *copy = palloc(bytes.len + 1);

		memcpy(copy, bytes.data, bytes.len);
		bytes.data = copy;
	}
	return bytes;
}

static void
free_record(RelayRecord *record)
{
	if (record == NULL)
		return;
	for (int i = 0; i < record->nheaders; i++)
	{
		pfree((void *) record->headers[i].name.data);
		if (record->headers[i].value.data)
			pfree((void *) record->headers[i].value.data);
	}
	pfree(record->headers);
	if (record->key.data)
		pfree((void *) record->key.data);
	if (record->value.data)
		pfree((void *) record->value.data);
	pfree((void *) record->topic);
	pfree(record);
}

/* Keeps the record of a row that waits. */
void
relay_kept_add(uint64_t ticket, const RelayRecord *record)
{
	RelayRecord **place = &kept[ticket & PG_UINT32_MAX];
	MemoryContext old_context;
	RelayRecord *copy;

	if (kept_context == NULL)
		kept_context = AllocSetContextCreate(TopMemoryContext, "idem relay waiting rows", ALLOCSET_DEFAULT_SIZES);
	free_record(*place);		/* of a row that the rules left behind */
	*place = NULL;

	old_context = MemoryContextSwitchTo(kept_context);
	copy = palloc(sizeof(RelayRecord));
	*copy = *record;
	copy->topic = pstrdup(record->topic);
	copy->key = copy_bytes(record->key);
	copy->value = copy_bytes(record->value);
	copy->headers = palloc(sizeof(RelayHeader) * (record->nheaders + 1));
	for (int i = 0; i < record->nheaders; i++)
	{
		copy->headers[i].name = copy_bytes(record->headers[i].name);
		copy->headers[i].value = copy_bytes(record->headers[i].value);
	}
	MemoryContextSwitchTo(old_context);
	*place = copy;
	any = true;
}

/* The record of a row whose turn has come; NULL: keeping it failed. */
const RelayRecord *
relay_kept_get(uint64_t ticket)
{
	return kept[ticket & PG_UINT32_MAX];
}

/* Lets it go, when the client library has its copy. */
void
relay_kept_free(uint64_t ticket)
{
	RelayRecord **place = &kept[ticket & PG_UINT32_MAX];

	free_record(*place);
	*place = NULL;
}

/* Lets all records go, when no row waits. */
void
relay_kept_forget(void)
{
	if (!any)
		return;
	memset(kept, 0, sizeof(kept));
	MemoryContextReset(kept_context);
	any = false;
}
