"""Rows of idem.idempotency, one for each record that the table tells apart.

All times lie hours away from the clock, so that how fast a test runs does not
matter.
"""

import hashlib
import itertools

from table import FACTS

PRINCIPAL = 'model'

SAME = b'\x11' * 16
OTHER = b'\x22' * 16
NEWER = b'\x33' * 16

# What the settings are during the test; one thing is not to be taken for
# another because their lengths are alike.
SETTINGS = {
    'idem.lease': '40min',
    'idem.call_margin': '7min',
    'idem.call_grace': '3h',
    'idem.max_tries': '10',
    'idem.max_response_bytes': '1000B',
    'idem.response_retention': '50h',
    'idem.record_retention': '90h',
}
HOURS = 3600
MINUTES = 60
LEASE = 40 * MINUTES
CALL_MARGIN = 7 * MINUTES
MAX_TRIES = 10
MAX_RESPONSE_BYTES = 1000
RESPONSE_RETENTION = 50 * HOURS
RECORD_RETENTION = 90 * HOURS

CONTEXT = '{"of": "the first"}'
STATUS = 201
HEADERS = '[["content-type", "text/plain"], ["x-stored", "yes"]]'
BODY = b'stored\x00response\xff'
BIG_BODY = b'a response that is too long to be kept. ' * 50

TRIES = {'few': 3, 'last': MAX_TRIES - 1}
DEDUP = {'none': None, 'once': None, 'forgotten': -1 * HOURS, 'hour': 1 * HOURS, 'hours': 10 * HOURS}

DEFAULTS = {
    'state': 'none', 'lease': 'over', 'call': 'none', 'tries': 'few', 'yielded': False, 'expired': False,
    'mine': False, 'call_here': False, 'grace': 'over', 'response': 'kept', 'verdict': None,
    'retention': None, 'interim': None,
}


class Record:
    """A record as the table sees it, and how to bring it about.

    facts       as in table.FACTS, with two that change no row of the table:
                retention (of the record, seconds) and interim (HTTP status that
                idem_mark_unknown left)
    stored      facts of the row that an earlier transaction left; None: there
                was none
    prelude     statements of the asking transaction that precede the event, with
                $where, $key and so on as in events.py
    """

    def __init__(self, name, facts, stored=None, prelude=()):
        self.name = name
        self.facts = {**DEFAULTS, **facts}
        self.stored = None if stored is None else {**DEFAULTS, **stored}
        self.prelude = prelude

    @property
    def operation(self):
        return f'op {self.name}'

    def columns(self):
        """The stored row: plain values, and ('at', seconds) for times from now."""
        facts = self.stored
        alive = facts['lease'] == 'alive'
        claimed, lease = (-2 * HOURS, 3 * HOURS) if alive else (-6 * HOURS, -4 * HOURS)
        if facts['expired'] and facts['state'] == 'IN_PROGRESS':
            claimed, lease = -402 * HOURS, -400 * HOURS
        columns = {
            'principal_id': PRINCIPAL, 'idempotency_key': self.name, 'request_hash': SAME,
            'operation': self.operation, 'state': facts['state'], 'tries': TRIES[facts['tries']],
            'claim_xid': '3', 'created_at': ('at', claimed - HOURS), 'claimed_at': ('at', claimed),
            'lease_expires_at': ('at', lease), 'sweep_at': ('at', claimed), 'yielded': facts['yielded'], 'context': CONTEXT,
            'retention': None if facts['retention'] is None else f"{facts['retention']} seconds",
        }
        if facts['call'] != 'none':
            columns |= _call(facts, claimed)
        elif facts['state'] == 'IN_PROGRESS':
            columns['expires_at'] = ('at', lease + (facts['retention'] or RECORD_RETENTION))
        if facts['state'] == 'UNKNOWN':
            columns |= {'unknown_at': ('at', -3 * HOURS), 'unknown_reason': 'a reason', 'external_ref': 'ref-1',
                        'response_status': facts['interim']}
        if facts['state'] == 'COMPLETED':
            columns |= _response(facts)
        return columns

    def insert(self, now):
        """The statement that brings the row about; now: the clock, as SQL."""
        columns = {name: value for name, value in self.columns().items() if value is not None}
        columns |= {'attempt': ('sql', "nextval('idem.attempt')"), 'resource_id': ('sql', 'idem_uuid7()')}
        values = [f"{now} + '{value[1]} seconds'" if isinstance(value, tuple) and value[0] == 'at' else literal(value)
                  for value in columns.values()]
        return f"INSERT INTO idem.idempotency ({', '.join(columns)}) VALUES ({', '.join(values)})"


def _call(facts, claimed):
    """Columns of a record whose call was started at its claim."""
    deadline = 2 * HOURS if facts['lease'] == 'alive' else -5 * HOURS
    if facts['grace'] == 'running':
        deadline = -1 * HOURS
    columns = {'call_xid': '3', 'call_started_at': ('at', claimed), 'call_deadline': ('at', deadline)}
    if DEDUP[facts['call']] is not None:
        columns['dedup_until'] = ('at', DEDUP[facts['call']])
    return columns


def _response(facts):
    """Columns of a record that is completed."""
    kept = not facts['response'].endswith('not kept')
    body = BODY if kept else BIG_BODY
    over = facts['expired'] or facts['response'] in ('expired', 'expired, not kept', 'swept')
    return {
        'completed_at': ('at', -5 * HOURS), 'verdict': facts['verdict'], 'response_status': STATUS,
        'response_headers': HEADERS, 'response_size': len(body),
        'response_body': BODY if facts['response'] in ('kept', 'expired') else None,
        'response_digest': None if kept else hashlib.sha256(body).digest(),
        'response_expires_at': ('at', -1 * HOURS if over else 45 * HOURS),
        'expires_at': ('at', -30 * MINUTES if facts['expired'] else 85 * HOURS),
    }


def literal(value):
    """A value as SQL."""
    if isinstance(value, tuple):        # SQL as it is
        return value[1]
    if value is None:
        return 'NULL'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return "'" + value.replace("'", "''") + "'"


def _name(facts):
    """A key for a record: what is not as usual about it."""
    words = [facts['state']]
    for fact, value in facts.items():
        if fact == 'lease':
            words.append(f'lease {value}')
        elif fact != 'state' and value != DEFAULTS[fact]:
            words.append(fact if value is True else f'{fact} {value}')
    return ', '.join(words)


def _all(state, **choices):
    """Stored records of a state with all combinations of these facts."""
    for values in itertools.product(*choices.values()):
        facts = {'state': state, **dict(zip(choices, values))}
        yield Record(_name(facts), facts, stored=facts)


def stored_records():
    """Records that an earlier transaction left."""
    calls, tries, verdicts = FACTS['call'], FACTS['tries'], FACTS['verdict']
    short, long = 1 * HOURS, 200 * HOURS

    yield Record('never used', {})
    yield from _all('IN_PROGRESS', lease=('alive',), call=calls, tries=tries)
    yield from _all('IN_PROGRESS', lease=('over',), call=calls, tries=tries, yielded=(False, True))
    yield from _all('IN_PROGRESS', lease=('over',), expired=(True,), tries=tries, yielded=(False, True))
    yield from _all('IN_PROGRESS', lease=('alive',), call=('none', 'hours'), retention=(short, long))
    yield from _all('IN_PROGRESS', lease=('over',), call=('none', 'hours'), retention=(long,))
    yield from _all('UNKNOWN', call=('none', 'once', 'hours'), interim=(None, 202, 503))
    yield from _all('UNKNOWN', call=('once', 'hours'), interim=(None, 202), grace=('running',))
    yield from _all('COMPLETED', verdict=verdicts, response=FACTS['response'])
    yield from _all('COMPLETED', verdict=verdicts, response=('kept', 'expired', 'swept'), expired=(True,))


def own_records():
    """Records that the asking transaction itself brought about, or changed."""
    attempt = '(SELECT attempt FROM idem.idempotency WHERE (principal_id, idempotency_key) = ($where))'
    claim = f"SELECT idem_try_insert($where, {literal(SAME)}, $operation, context => {literal(CONTEXT)})"
    call = claim[:-1] + ", call_timeout => '1 hour', dedup_window => '20 hours')"
    before = f"SELECT idem_before_call($where, {attempt}, '1 hour', '20 hours')"
    done = f'SELECT idem_complete($where, {attempt}, {STATUS}, {literal(BODY)}::bytea, {literal(HEADERS)})'
    lapse = ("UPDATE idem.idempotency SET lease_expires_at = claimed_at - interval '1 hour' "
             'WHERE (principal_id, idempotency_key) = ($where)')
    give_up = f'SELECT idem_yield($where, {attempt})'
    mark = f'SELECT idem_mark_unknown($where, {attempt})'
    alive = {'state': 'IN_PROGRESS', 'lease': 'alive'}
    over = {'state': 'IN_PROGRESS', 'lease': 'over'}
    mine = {**alive, 'mine': True}
    calling = {**mine, 'call': 'hours', 'call_here': True}

    yield Record('own: claimed', mine, None, [claim])
    yield Record('own: claimed with a call', calling, None, [call])
    yield Record('own: claimed, then a call', calling, None, [claim, before])
    yield Record('own: taken over', mine, over, [claim])
    yield Record('own: taken over with a call', calling, over, [call])
    yield Record('own: call of an earlier claim', {**calling, 'mine': False}, alive, [before])
    yield Record('own: claimed, lease over', {**over, 'mine': True}, None, [claim, lapse])
    yield Record('own: claimed and yielded', {**over, 'mine': True, 'yielded': True}, None, [claim, give_up])
    yield Record('own: claimed and completed', {'state': 'COMPLETED', 'mine': True}, None, [claim, done])
    yield Record('own: claimed and UNKNOWN', {'state': 'UNKNOWN', 'mine': True, 'interim': 202}, None, [claim, mark])
    yield Record('own: a claim made it UNKNOWN', {'state': 'UNKNOWN', 'call': 'once'}, {**over, 'call': 'once'}, [claim])
