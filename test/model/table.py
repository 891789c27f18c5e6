"""The rules of idempotency records, as data.

Written from the words of the design and of the SQL script's comments, not from
the C code: two who read the rules alike must come to the same answers.

A record is described by facts (see FACTS).  CLASSES sorts it into a row of
TABLE, whose columns are events; the cell names a verdict, and VERDICTS says what
a verdict does to the record's columns and what it answers.
"""

# What there is to know of a record.  "lasting" is how the far side remembers the
# call: not at all, no more, for another hour, for another ten hours.
FACTS = {
    'state': ('none', 'IN_PROGRESS', 'UNKNOWN', 'COMPLETED'),
    'lease': ('alive', 'over'),
    'call': ('none', 'once', 'forgotten', 'hour', 'hours'),
    'tries': ('few', 'last'),          # last: one more makes idem.max_tries
    'yielded': (False, True),
    'expired': (False, True),
    'mine': (False, True),             # claimed in the asking transaction
    'call_here': (False, True),        # call marked in the asking transaction
    'grace': ('over', 'running'),      # call_deadline + idem.call_grace
    'response': ('kept', 'not kept', 'expired', 'expired, not kept', 'swept'),
    'verdict': (None, 'completed', 'not_applied'),
}

# Whether a call that was started can be made again under the same key, by how
# long the new call may take: none is marked, ten minutes, two hours.
REPEATABLE = {
    #             none   short  long
    'none':      (True,  True,  True),
    'once':      (False, False, False),
    'forgotten': (False, False, False),
    'hour':      (True,  True,  False),
    'hours':     (True,  True,  True),
}
TIMEOUTS = ('none', 'short', 'long')

# Whether a take-over finds attempts left: an attempt that yielded is not counted.
ATTEMPTS_LEFT = {
    # (tries, yielded)
    ('few', False): True,
    ('few', True): True,
    ('last', False): False,
    ('last', True): True,
}

# The first line that fits, top down.  "repeatable" and "left" are looked up in
# the two tables above; a fact that a line does not name may be anything.
CLASSES = (
    ('none', {'state': 'none'}),
    ('expired', {'expired': True}),
    ('gone', {'state': 'COMPLETED', 'response': ('expired', 'expired, not kept', 'swept')}),
    ('settled done', {'state': 'COMPLETED', 'verdict': 'completed'}),
    ('settled not', {'state': 'COMPLETED', 'verdict': 'not_applied'}),
    ('completed', {'state': 'COMPLETED'}),
    ('unknown, early', {'state': 'UNKNOWN', 'grace': 'running'}),
    ('unknown', {'state': 'UNKNOWN'}),
    ('mine, calling', {'lease': 'alive', 'mine': True, 'call_here': True}),
    ('mine', {'lease': 'alive', 'mine': True}),
    ('alive, calling', {'lease': 'alive', 'call_here': True}),
    ('alive, too late', {'lease': 'alive', 'call': ('forgotten', 'hour', 'hours'), 'repeatable': False}),
    ('alive', {'lease': 'alive'}),
    ('mine, over', {'lease': 'over', 'mine': True, 'yielded': False}),
    ('mine, yielded', {'lease': 'over', 'mine': True, 'repeatable': True, 'left': True}),
    ('over', {'lease': 'over', 'repeatable': True, 'left': True}),
    ('uncertain', {'lease': 'over'}),
)

# Every record × every event.  A code is an error.  "complete" is with a response
# not stored before, "repeat" with the very response that is stored, if one is: a
# repeat by the attempt that stored it, whereas after an operator's verdict the
# attempt's own rows must roll back.
# A dash: nothing happens, and nothing or no row is answered.  "fenced", not
# shown, is any of the owner's functions with another attempt: ID001 throughout.
TABLE = """
record          | claim         | other hash | complete | repeat   | mark_unknown | before_call | yield   | completed | not_applied | claim_stale | sweep    | lookup
none            | STARTED       | STARTED    | ID001    | ID001    | ID001        | ID001       | ID001   | ID001     | ID001       | -           | -        | -
expired         | STARTED       | STARTED    | ID001    | ID001    | ID001        | ID001       | ID001   | ID001     | ID001       | -           | deleted  | -
alive           | IN_PROGRESS   | MISMATCH   | done     | done     | unknown      | call        | yielded | ID002     | ID002       | -           | -        | IN_PROGRESS
alive, too late | IN_PROGRESS   | MISMATCH   | done     | done     | unknown      | ID002       | yielded | ID002     | ID002       | -           | -        | IN_PROGRESS
alive, calling  | IN_PROGRESS   | MISMATCH   | ID003    | ID003    | unknown      | call        | yielded | ID002     | ID002       | -           | -        | IN_PROGRESS
mine            | ALREADY_YOURS | MISMATCH   | done     | done     | unknown      | call        | yielded | ID002     | ID002       | -           | -        | IN_PROGRESS
mine, calling   | ALREADY_YOURS | MISMATCH   | ID003    | ID003    | unknown      | call        | yielded | ID002     | ID002       | -           | -        | IN_PROGRESS
over            | RESUMED       | MISMATCH   | done     | done     | unknown      | call        | no-op   | ID002     | ID002       | RESUMED     | -        | IN_PROGRESS
mine, over      | ALREADY_YOURS | MISMATCH   | done     | done     | unknown      | call        | no-op   | ID002     | ID002       | -           | -        | IN_PROGRESS
mine, yielded   | RESUMED       | MISMATCH   | done     | done     | unknown      | call        | no-op   | ID002     | ID002       | -           | -        | IN_PROGRESS
uncertain       | BECOMES       | MISMATCH   | done     | done     | unknown      | ID002       | ID002   | ID002     | ID002       | BECOMES     | -        | IN_PROGRESS
unknown, early  | UNKNOWN       | MISMATCH   | done     | done     | no-op        | ID002       | ID002   | ID002     | ID002       | -           | -        | UNKNOWN
unknown         | UNKNOWN       | MISMATCH   | done     | done     | no-op        | ID002       | ID002   | settled   | settled     | -           | -        | UNKNOWN
completed       | REPLAY        | MISMATCH   | ID002    | repeated | ID002        | ID002       | ID002   | ID002     | ID002       | -           | -        | REPLAY
settled done    | REPLAY        | MISMATCH   | ID002    | ID002    | ID002        | ID002       | ID002   | repeated  | ID002       | -           | -        | REPLAY
settled not     | REPLAY        | MISMATCH   | ID002    | ID002    | ID002        | ID002       | ID002   | ID002     | repeated    | -           | -        | REPLAY
gone            | RESULT_GONE   | MISMATCH   | ID002    | ID002    | ID002        | ID002       | ID002   | ID002     | ID002       | -           | response | RESULT_GONE
"""

# What a verdict does to the record; columns that are not named stay as they
# were.  Words for values: "now" is the clock during the call, "here" the
# transaction's id, "new" a value that no row had, "given" the argument of the
# column's name.  A column that is not looked at is "any".
VERDICTS = {
    'STARTED': {
        'request_hash': 'given', 'operation': 'given', 'state': 'IN_PROGRESS', 'attempt': 'new', 'tries': 0,
        'claim_xid': 'here', 'call_xid': None, 'resource_id': 'new', 'created_at': 'now', 'claimed_at': 'now',
        'lease_expires_at': 'now + lease', 'call_started_at': None, 'call_deadline': None, 'dedup_until': None,
        'yielded': False, 'context': 'given', 'retention': 'given', 'unknown_at': None, 'unknown_reason': None,
        'external_ref': None, 'verdict': None, 'response_status': None, 'response_headers': None,
        'response_body': None, 'response_size': None, 'response_digest': None, 'completed_at': None,
        'response_expires_at': None, 'expires_at': 'lease + retention', 'sweep_at': 'any',
    },
    'RESUMED': {
        'attempt': 'new', 'tries': 'ended', 'claim_xid': 'here', 'claimed_at': 'now',
        'lease_expires_at': 'now + lease', 'yielded': False, 'expires_at': 'lease + retention, or never',
        'sweep_at': 'any',
    },
    'BECOMES': {
        'state': 'UNKNOWN', 'tries': 'ended', 'unknown_at': 'now', 'unknown_reason': 'any', 'response_status': 202,
        'expires_at': None,
    },
    'IN_PROGRESS': {},
    'ALREADY_YOURS': {},
    'MISMATCH': {},
    'UNKNOWN': {},
    'REPLAY': {},
    'RESULT_GONE': {},
    'done': {
        'state': 'COMPLETED', 'completed_at': 'now', 'response_status': 'given', 'response_headers': 'given',
        'response_body': 'given', 'response_size': 'given', 'response_digest': 'given',
        'response_expires_at': 'now + response retention', 'expires_at': 'now + record retention',
        'unknown_at': 'any', 'unknown_reason': 'any', 'external_ref': 'any',
    },
    'unknown': {
        'state': 'UNKNOWN', 'tries': 'one more', 'unknown_at': 'now', 'unknown_reason': 'given', 'external_ref': 'given',
        'response_status': 'given', 'expires_at': None,
    },
    'call': {'yielded': False},         # and CALL, as for a claim that marks one
    'yielded': {'lease_expires_at': 'now', 'yielded': True},
    'settled': {
        'state': 'COMPLETED', 'verdict': 'given', 'completed_at': 'now', 'response_status': 'given',
        'response_headers': 'given', 'response_body': 'given', 'response_size': 'given', 'response_digest': 'given',
        'response_expires_at': 'now + response retention', 'expires_at': 'now + record retention',
    },
    'no-op': {},
    'repeated': {},
    'response': {'response_body': None, 'response_digest': None, 'response_headers': 'any', 'context': 'any', 'sweep_at': 'any'},
    'deleted': 'no row',
    '-': {},
}

# What marking a call adds; dedup_until only where no call was started before.
CALL = {
    'call_started_at': 'now', 'call_deadline': 'now + timeout', 'call_xid': 'here',
    'lease_expires_at': 'now + lease, past the deadline', 'expires_at': None,
}
FIRST_CALL = {'dedup_until': 'now + window'}

# What a claim answers: (run, changed, status, problem code, retry_after,
# expires_at).  A status "stored" is the record's, with "replayed" the header
# Idempotent-Replayed as well.  expires_at: as the record has it, or hidden.
ANSWERS = {
    'STARTED':       (True,  True,  None,       None,                       None,        'record'),
    'RESUMED':       (True,  True,  None,       None,                       None,        'record'),
    'BECOMES':       (False, True,  202,        'operation_uncertain',      'unknown',   'record'),
    'UNKNOWN':       (False, False, 'interim',  'operation_uncertain',      'unknown',   'record'),
    'IN_PROGRESS':   (False, False, 409,        'operation_in_progress',    'lease',     'record'),
    'ALREADY_YOURS': (False, False, 409,        'operation_in_progress',    'lease',     'record'),
    'MISMATCH':      (False, False, 409,        'idempotency_key_reused',   None,        'hidden'),
    'REPLAY':        (False, False, 'replayed', None,                       None,        'record'),
    'RESULT_GONE':   (False, False, 409,        'operation_result_expired', None,        'record'),
}

# What the other functions answer: (changed, status, problem code).
REPLIES = {
    'done': (True, 'given', None),
    'settled': (True, 'given', None),
    'repeated': (False, 'stored', None),
    'unknown': (True, 'given', 'operation_uncertain'),
    'yielded': (True, 503, 'operation_in_progress'),
    'no-op mark_unknown': (False, 'interim', 'operation_uncertain'),
    'no-op yield': (False, 503, 'operation_in_progress'),
}

# In a read-only transaction: what would write is refused, and who would make a
# record UNKNOWN hears so without doing it.
READ_ONLY = {'STARTED': '25006', 'RESUMED': '25006', 'BECOMES': 'UNKNOWN'}


def _read_table():
    lines = [[cell.strip() for cell in line.split('|')] for line in TABLE.strip().splitlines()]
    events = lines[0][1:]
    return {line[0]: dict(zip(events, line[1:], strict=True)) for line in lines[1:]}


CELLS = _read_table()


def class_of(facts, timeout='none'):
    """The row of the table for a record, as a call of this length sees it."""
    seen = dict(facts)
    if facts['state'] == 'IN_PROGRESS':
        seen['repeatable'] = REPEATABLE[facts['call']][TIMEOUTS.index(timeout)]
        seen['left'] = ATTEMPTS_LEFT[facts['tries'], facts['yielded']]
    for name, conditions in CLASSES:
        if all(seen.get(fact) in wanted if isinstance(wanted, tuple) else seen.get(fact) == wanted
               for fact, wanted in conditions.items()):
            return name
    raise ValueError(f'no row of the table is for {facts}')


def verdict(facts, event, timeout='none'):
    """What the table says of an event: a verdict, or an error's code."""
    if event == 'fenced':
        return 'ID001'
    return CELLS[class_of(facts, timeout)][event]
