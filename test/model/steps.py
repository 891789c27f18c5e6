"""The steps of a history as SQL, and what their answers say."""

import records
from events import fill

CLAIM = 'SELECT outcome, changed, attempt FROM idem_try_insert($where, %s, $operation%s)'
HTTP = 'SELECT changed FROM idem_%s'

# Step: (event of the table, SQL, length of the call it marks).
CALLS = {
    'claim': ('claim', CLAIM % (records.literal(records.SAME), ''), 'none'),
    'claim other': ('other hash', CLAIM % (records.literal(records.OTHER), ''), 'none'),
    'claim call': ('claim', CLAIM % (records.literal(records.SAME), ", call_timeout => '10 minutes'"), 'short'),
    'stale': ('claim_stale', 'SELECT outcome, changed, attempt FROM idem_claim_stale($operation)', 'none'),
    'lookup': ('lookup', 'SELECT outcome, changed FROM idem_lookup($where)', 'none'),
    'sweep': ('sweep', 'SELECT records FROM idem_sweep()', 'none'),
    'complete': ('complete', HTTP % "complete($where, $attempt, 201, 'by $attempt'::text)", 'none'),
    'yield': ('yield', HTTP % 'yield($where, $attempt)', 'none'),
    'unknown': ('mark_unknown', HTTP % 'mark_unknown($where, $attempt)', 'none'),
    'before': ('before_call', "SELECT idem_before_call($where, $attempt, '10 minutes')", 'short'),
    'resolve': ('not_applied', HTTP % "resolve($where, 'not_applied', '{}', 402, ''::text)", 'none'),
}
NEVER_WAIT = ('claim', 'claim other', 'claim call', 'stale', 'lookup', 'sweep')
CHANGED = {'complete': 'done', 'yield': 'yielded', 'unknown': 'unknown', 'resolve': 'settled'}
UNCHANGED = {'complete': 'repeated', 'yield': 'no-op', 'unknown': 'no-op', 'resolve': 'repeated'}

CONTROLS = {
    'begin': 'BEGIN ISOLATION LEVEL %s', 'snap': 'BEGIN ISOLATION LEVEL %s; SELECT 1',
    'savepoint': 'SAVEPOINT s', 'rollback to': 'ROLLBACK TO s', 'commit': 'COMMIT', 'rollback': 'ROLLBACK',
    'prepare': "PREPARE TRANSACTION '$gid'", 'commit prepared': "COMMIT PREPARED '$gid'",
    'rollback prepared': "ROLLBACK PREPARED '$gid'",
}
LEVELS = {'RC': 'READ COMMITTED', 'RR': 'REPEATABLE READ', 'SER': 'SERIALIZABLE'}


def verdict_of(call, answer):
    """What an answer says, in the words of the table."""
    if answer.error:
        return answer.error
    row = answer.rows[0] if answer.rows else None
    if row is None:
        return '-'
    if 'outcome' in row:
        return 'BECOMES' if row['outcome'] == 'UNKNOWN' and row['changed'] == 't' else row['outcome']
    if call == 'sweep':
        return 'deleted' if row['records'] != '0' else '-'
    if call == 'before':
        return 'call'
    return (CHANGED if row['changed'] == 't' else UNCHANGED)[call]


def sql_of(part, record, session, attempt):
    """A part of a step as SQL, for a session with this attempt."""
    if part in CALLS:
        return fill(CALLS[part][1], record, attempt)
    word, level = part.split() if part.startswith(('begin ', 'snap ')) else (part, None)
    text = CONTROLS[word].replace('$gid', gid_of(record, session))
    return text % LEVELS[level] if level else text


def gid_of(record, session):
    """The name under which a session prepares its transaction."""
    return f'{record.name} {session}'
