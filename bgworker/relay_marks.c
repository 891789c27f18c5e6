/*-------------------------------------------------------------------------
 *
 * relay_marks.c
 *		The relay's rules: when rows that Kafka has stored are marked.
 *
 * A mark that fails is tried again; its row stays acknowledged and is not sent
 * again.  If the rows themselves may be at fault (a trigger that raises for one of
 * them), halves are tried, until the one that can't be marked is found: it is
 * set aside for a while, and the others are marked.
 *
 *-------------------------------------------------------------------------
 */
#include "relay_state.h"

/* pause before a row is tried again that could not be marked by itself */
#define ASIDE_PAUSE			(10 * USEC_PER_SEC)

/* When acknowledged rows are to be marked. */
static int64_t
mark_at(const RelayRules *rules)
{
	int			n = rules->acknowledged - rules->aside;
	int64_t		at = RELAY_NEVER;

	if (n > 0)
		at = n >= RELAY_MARK_ROWS || rules->in_flight == 0 ? 0 : rules->acknowledged_since + RELAY_MARK_USEC;
	if (rules->aside > 0 && rules->aside_until < at)
		at = rules->aside_until;
	return at > rules->mark_not_before ? at : rules->mark_not_before;
}

int64_t
relay_mark_at(const RelayRules *rules)
{
	return rules->acknowledged > 0 ? mark_at(rules) : RELAY_NEVER;
}

bool
relay_rules_mark_due(const RelayRules *rules, int64_t now)
{
	return rules->acknowledged > 0 && mark_at(rules) <= now;
}

/* Rows that were set aside are looked at again. */
static void
end_aside(RelayRules *rules)
{
	for (int leaf = 0; leaf < RELAY_LEAVES; leaf++)
		for (int i = rules->leaf[leaf].acknowledged.first; i != NONE; i = rules->entry[i].next)
			rules->entry[i].aside = false;
	rules->aside = 0;
}

/*
 * The acknowledged rows of a leaf that one transaction is to mark; entries has
 * room for RELAY_ENTRIES.
 */
int
relay_rules_to_mark(RelayRules *rules, int leaf, const RelayEntry **entries, int64_t now)
{
	RelayLeaf  *l = &rules->leaf[leaf];
	int			n = 0;

	if (rules->aside > 0 && rules->aside_until <= now)
		end_aside(rules);
	for (int i = l->acknowledged.first; i != NONE && n < l->chunk; i = rules->entry[i].next)
		if (!rules->entry[i].aside)
			entries[n++] = &rules->entry[i];
	return n;
}

/* These rows of a leaf are marked, and the marks committed. */
void
relay_rules_marked(RelayRules *rules, int leaf, const RelayEntry **entries, int n)
{
	RelayLeaf  *l = &rules->leaf[leaf];

	for (int j = 0; j < n; j++)
	{
		int			i = (int) (entries[j] - rules->entry);

		relay_list_remove(rules, &l->acknowledged, i);
		relay_entry_free(rules, i);
	}
	l->nacknowledged -= n;
	rules->acknowledged -= n;
	l->chunk = l->chunk * 2 < RELAY_ENTRIES ? l->chunk * 2 : RELAY_ENTRIES;
	rules->mark_failed = rules->aside > 0;
}

/*
 * Marking them raised an error: the acknowledgements are kept.  rows_at_fault:
 * the error may come from one of the rows, and not from the server's state.
 */
void
relay_rules_mark_failed(RelayRules *rules, int leaf, const RelayEntry **entries, int n,
						bool rows_at_fault, int64_t now)
{
	RelayLeaf  *l = &rules->leaf[leaf];

	rules->mark_failed = true;
	if (!rows_at_fault || n == 0)
		rules->mark_not_before = now + DATABASE_PAUSE;
	else if (n > 1)
		l->chunk = n / 2;
	else
	{
		int			i = (int) (entries[0] - rules->entry);

		if (rules->aside == 0)
			rules->aside_until = now + ASIDE_PAUSE;
		rules->entry[i].aside = true;
		rules->aside++;
		l->chunk = RELAY_ENTRIES;
	}
}
