"""The events of the table as calls of the SQL functions.

An event is one statement, with the arguments that the table's verdicts speak of
as "given".
"""

import dataclasses
import hashlib
import json
import string

from records import BIG_BODY, BODY, HEADERS, HOURS, MINUTES, MAX_RESPONSE_BYTES, NEWER, OTHER, PRINCIPAL, SAME, STATUS, literal

TIMEOUT = {'none': None, 'short': 10 * MINUTES, 'long': 2 * HOURS}


@dataclasses.dataclass
class Event:
    """name: for people; column: of the table; kind: claim, http, call, stale,
    lookup or sweep; sql: with $where (principal and key), $principal, $key,
    $operation and $attempt; given: arguments by the names of columns; timeout
    and window: of the call that it marks."""
    name: str
    column: str
    kind: str
    sql: str
    given: dict = dataclasses.field(default_factory=dict)
    timeout: str = 'none'
    window: int = 0
    lease: int = None
    looks: bool = False             # writes nothing, or only for some records

    def statement(self, record, attempt):
        return fill(self.sql, record, attempt)


def fill(sql, record, attempt=''):
    """SQL for a record: $principal, $key, $where (both), $operation, $attempt."""
    principal, key = literal(PRINCIPAL), literal(record.name)
    return string.Template(sql).substitute(
        principal=principal, key=key, where=f'{principal}, {key}', operation=literal(record.operation), attempt=attempt)


def seconds(length):
    return 'NULL' if length is None else f"'{length} seconds'"


# (timeout, dedup_window, lease, retention) of claims
ARGUMENTS = (
    ('none', 0, None, None),
    ('none', 5 * HOURS, None, None),
    ('none', 0, 3 * HOURS, None),
    ('none', 0, None, 30 * HOURS),
    ('none', 0, None, 300 * HOURS),
    ('short', 0, None, None),
    ('short', 5 * HOURS, None, None),
    ('short', 5 * HOURS, 3 * HOURS, 30 * HOURS),
    ('long', 0, None, None),
    ('long', 1 * HOURS, None, None),
    ('long', 5 * HOURS, None, None),
)

# enough where a claim of the same hash was tried with all of them
FEW_ARGUMENTS = ARGUMENTS[0], ARGUMENTS[7], ARGUMENTS[8]

# (name, column of the table, request_hash, also_accept)
HASHES = (
    ('same', 'claim', SAME, []),
    ('other', 'other hash', OTHER, []),
    ('accepted', 'claim', NEWER, [OTHER, SAME]),
    ('not accepted', 'other hash', NEWER, [OTHER]),
)


def claims(many):
    """Claims of one key, or of a list with one key."""
    context = {'of': 'this one'}
    for name, column, request_hash, also_accept in HASHES:
        for timeout, window, lease, retention in FEW_ARGUMENTS if many or name != 'same' else ARGUMENTS:
            accept = ', '.join(literal(one) for one in also_accept)
            rest = (f"$operation, {seconds(lease)}, {seconds(TIMEOUT[timeout])}, {seconds(window)}, "
                    f"{literal(json.dumps(context))}, ARRAY[{accept}]::bytea[], {seconds(retention)}")
            if many:
                sql = (f"SELECT * FROM idem_try_insert_many($principal, ARRAY[$key], "
                       f"ARRAY[{literal(request_hash)}::bytea], {rest})")
            else:
                sql = f"SELECT * FROM idem_try_insert($where, {literal(request_hash)}, {rest})"
            yield Event(
                f"{'claim of many' if many else 'claim'}, {name} hash, call {timeout}, window {window}"
                f", lease {lease}, retention {retention}",
                column, 'claim', sql, timeout=timeout, window=window, lease=lease, looks=True,
                given={'request_hash': request_hash, 'context': context, 'retention': retention})


def _response(body):
    kept = len(body) <= MAX_RESPONSE_BYTES
    return {'response_status': STATUS, 'response_headers': HEADERS, 'response_body': body if kept else None,
            'response_size': len(body), 'response_digest': None if kept else hashlib.sha256(body).digest(), 'body': body}


def completions():
    for name, body in (('the usual', BODY), ('a big', BIG_BODY), ('another', b'else'), ('an empty', b'')):
        yield Event(f'complete, {name} response', 'complete', 'http',
                    f'SELECT * FROM idem_complete($where, $attempt, {STATUS}, {literal(body)}::bytea, {literal(HEADERS)})',
                    given=_response(body))
    yield Event('complete, another status', 'complete', 'http',
                f'SELECT * FROM idem_complete($where, $attempt, 402, {literal(BODY)}::bytea, {literal(HEADERS)})',
                given={**_response(BODY), 'response_status': 402})
    headers = '[["x-other", "header"]]'
    yield Event('complete, other headers', 'complete', 'http',
                f'SELECT * FROM idem_complete($where, $attempt, {STATUS}, {literal(BODY)}::bytea, {literal(headers)})',
                given={**_response(BODY), 'response_headers': headers})


def resolutions():
    evidence = '{"file": "settlement"}'
    for verdict, status, body in (('completed', STATUS, BODY), ('not_applied', 402, b'refused'), ('completed', 200, BIG_BODY)):
        yield Event(f'resolve, {verdict}, {len(body)} bytes', verdict, 'http',
                    f'SELECT * FROM idem_resolve($where, {literal(verdict)}, {literal(evidence)}, {status}, '
                    f'{literal(body)}::bytea, {literal(HEADERS)})',
                    given={**_response(body), 'response_status': status, 'verdict': verdict})


def owner_events():
    """What the owner of a record calls, with its attempt."""
    yield from completions()
    for status in (None, 503):
        more = '' if status is None else f", 'no answer', 'ref-2', {status}"
        yield Event(f'mark_unknown, status {status}', 'mark_unknown', 'http',
                    f'SELECT * FROM idem_mark_unknown($where, $attempt{more})',
                    given={'response_status': status or 202, 'unknown_reason': status and 'no answer',
                           'external_ref': status and 'ref-2'})
    for timeout in ('short', 'long'):
        for window in (0, 5 * HOURS):
            yield Event(f'before_call, {timeout}, window {window}', 'before_call', 'call',
                        f'SELECT idem_before_call($where, $attempt, {seconds(TIMEOUT[timeout])}, {seconds(window)}) AS deadline',
                        timeout=timeout, window=window)
    yield Event('yield', 'yield', 'http', 'SELECT * FROM idem_yield($where, $attempt)')


def fenced(event):
    """The same with the attempt of another."""
    return dataclasses.replace(event, name=f'{event.name}, fenced', column='fenced',
                               sql=event.sql.replace('$attempt', '$attempt + 1000000'))


def other_events():
    yield from resolutions()
    yield Event('claim_stale', 'claim_stale', 'stale', 'SELECT * FROM idem_claim_stale($operation)')
    yield Event('claim_stale, with a lease', 'claim_stale', 'stale',
                f'SELECT * FROM idem_claim_stale($operation, 5, {seconds(3 * HOURS)})', lease=3 * HOURS)
    yield Event('sweep', 'sweep', 'sweep', 'SELECT * FROM idem_sweep(10000)')
    yield Event('lookup', 'lookup', 'lookup', 'SELECT * FROM idem_lookup($where)', looks=True)


def all_events():
    owned = list(owner_events())
    return [*claims(many=False), *claims(many=True), *owned, *map(fenced, owned), *other_events()]
