/*-------------------------------------------------------------------------
 *
 * idem_topic.c
 *		Telling the relay that the settings of topics have changed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "compat.h"
#include "idem_note.h"

/*
 * topic_changed() -> trigger
 *
 * Statement trigger of idem.topic.  Invalidates the table in everybody's
 * relation cache when the transaction commits, in whatever way it does: the
 * relay keeps what it read until then, and does not look again for nothing.
 * And wakes the relay, whose held keys another policy may let go.
 */
PG_FUNCTION_INFO_V1(topic_changed);
Datum
topic_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("topic_changed() must be called as a trigger")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	idem_note_holds();
	return PointerGetDatum(NULL);
}
