"""What the model expects of one event: the row after it, and the answer.

Everything here reads table.py; expected and actual are compared field by field,
and each difference is a line of text.
"""

import datetime
import json

import table
from events import TIMEOUT
from records import CALL_MARGIN, LEASE, RECORD_RETENTION, RESPONSE_RETENTION

ANY = object()


class Between:
    """A time between two readings of the clock, put off by some seconds."""

    def __init__(self, readings, seconds=0):
        self.low, self.high = (time + datetime.timedelta(seconds=seconds) for time in readings)

    def __eq__(self, other):
        return isinstance(other, datetime.datetime) and self.low <= other <= self.high

    def __repr__(self):
        return f'{self.low} .. {self.high}'


class Case:
    """One event on one record, and what was seen of it.

    before, after   the row, None: there is none
    clock           (before, after) the event
    rows            what the event answered
    """

    def __init__(self, record, event, read_only):
        self.record, self.event, self.read_only = record, event, read_only
        self.before = self.after = self.clock = self.xid = self.rows = None
        self.error = None
        self.resolutions = 0

    def verdict(self):
        """The verdict or error of the table."""
        event = self.event
        column = event.column
        if column == 'complete' and self.is_repeat():
            column = 'repeat'
        verdict = table.verdict(self.record.facts, column, event.timeout if event.kind in ('claim', 'call') else 'none')
        if self.read_only:
            if event.kind == 'stale':
                return '25006'
            verdict = table.READ_ONLY.get(verdict, verdict)
        if verdict == 'response' and self.record.facts['response'] == 'swept':
            return '-'
        return verdict

    def is_repeat(self):
        """Whether the response given is the one that is stored."""
        row, given = self.before, self.event.given
        return (row is not None and row['state'] == 'COMPLETED'
                and row['response_status'] == given['response_status']
                and row['response_headers'] == json.loads(given['response_headers'])
                and row['response_size'] == given['response_size']
                and (row['response_body'] == given['body'] or row['response_digest'] == given['response_digest'] is not None))

    # The row

    def effect(self, verdict):
        """Column → word or value, for the verdict and the call that it marks."""
        effect = table.VERDICTS[verdict]
        if verdict == 'call' or self.event.timeout != 'none' and verdict in ('STARTED', 'RESUMED'):
            effect = {**effect, **table.CALL}
            if verdict == 'STARTED' or self.before['call_started_at'] is None:
                effect |= table.FIRST_CALL
        return effect

    def value(self, verdict, column, word):
        """What a word of an effect stands for."""
        event, now = self.event, self.clock
        lease = event.lease or LEASE
        timeout = TIMEOUT[event.timeout] or 0
        given = event.given.get(column)
        if word == 'given':
            if column == 'operation':
                return self.record.operation
            if column == 'retention':
                return given and datetime.timedelta(seconds=given)
            return json.loads(given) if column == 'response_headers' else given
        if word == 'lease + retention, or never':
            word = 'lease + retention' if self.after['call_started_at'] is None else None
        words = {
            'any': lambda: ANY,
            'now': lambda: Between(now),
            'here': lambda: self.xid,
            'new': lambda: New(self.before and self.before[column]),
            'ended': lambda: self.before['tries'] + (not self.before['yielded']),
            'one more': lambda: self.before['tries'] + 1,
            'now + lease': lambda: Between(now, lease),
            'now + timeout': lambda: Between(now, timeout),
            'now + window': lambda: Between(now, event.window) if event.window else None,
            'now + lease, past the deadline': lambda: self.renewed(verdict, lease, timeout + CALL_MARGIN),
            'lease + retention': lambda: self.after['lease_expires_at'] + datetime.timedelta(
                seconds=self.retention(verdict)),
            'now + record retention': lambda: Between(now, self.retention(verdict)),
            'now + response retention': lambda: Between(now, min(RESPONSE_RETENTION, self.retention(verdict))),
        }
        return words[word]() if isinstance(word, str) and word in words else word

    def renewed(self, verdict, lease, past_call):
        """End of a lease that must outlast a call, and is never cut short."""
        if verdict != 'call':
            return Between(self.clock, max(lease, past_call))
        renewed = Between(self.clock, past_call)
        return renewed if renewed.low > self.before['lease_expires_at'] else self.before['lease_expires_at']

    def retention(self, verdict):
        """Seconds that the record is remembered."""
        if verdict == 'STARTED':
            return self.event.given['retention'] or RECORD_RETENTION
        return self.before['retention'].total_seconds() if self.before['retention'] else RECORD_RETENTION

    def row_differences(self, verdict):
        effect = self.effect(verdict)
        if effect == 'no row':
            return [] if self.after is None else ['the row is still there']
        if self.after is None:
            return [] if self.before is None and not effect else ['there is no row']
        if self.before is None and verdict != 'STARTED':
            return ['there is a row now']
        found = []
        for column, actual in self.after.items():
            if column in effect:
                wanted = self.value(verdict, column, effect[column])
            elif verdict == 'STARTED':
                continue
            else:
                wanted = self.before[column]
            compare(found, f'column {column}', wanted, actual)
        compare(found, 'sweep_at is not after what the sweep has to do', True, self.after['sweep_at'] <= self.due())
        compare(found, 'rows added to idem.resolution', int(verdict == 'settled'), self.resolutions)
        return found

    def due(self):
        """When the sweep has something to do with the row."""
        times = [self.after['expires_at']]
        if self.after['response_body'] is not None or self.after['response_digest'] is not None:
            times.append(self.after['response_expires_at'])
        return min((time for time in times if time), default=self.after['sweep_at'])

    # The answer

    def answer_differences(self, verdict):
        found = []
        kind = self.event.kind
        if kind in ('claim', 'stale', 'lookup'):
            wanted_rows = 0 if verdict == '-' else 1
            compare(found, 'number of rows', wanted_rows, len(self.rows))
            if wanted_rows == len(self.rows) == 1:
                self.claim_differences(found, verdict, self.rows[0])
        elif kind == 'http':
            self.http_differences(found, verdict, self.rows[0])
        elif kind == 'call':
            compare(found, 'deadline', self.after and self.after['call_deadline'], self.rows[0]['deadline'])
        return found

    def claim_differences(self, found, verdict, row):
        run, changed, status, code, retry_after, expires_at = table.ANSWERS[verdict]
        after = self.after
        wanted = {
            'outcome': 'UNKNOWN' if verdict == 'BECOMES' else verdict,
            'run': run,
            'changed': changed,
            'attempt': after['attempt'] if run else None,
            'resource_id': after['resource_id'] if run else None,
            'context': after['context'] if run else None,
            'call_deadline': after['call_deadline'] if run and self.event.timeout != 'none' else None,
            'retry_after': self.retry_after(retry_after),
            'expires_at': after['expires_at'] if expires_at == 'record' else None,
            'body_kept': {'REPLAY': self.record.facts['response'] == 'kept', 'RESULT_GONE': False}.get(verdict),
        }
        if self.event.kind == 'stale':
            wanted |= {'principal_id': after['principal_id'], 'idempotency_key': after['idempotency_key']}
        if 'claim_context' in row:
            row = {**row, 'context': row['claim_context']}
            wanted |= {'ord': 1, 'idempotency_key': self.record.name}
        for name, value in wanted.items():
            compare(found, name, value, row[name])
        if run:
            wanted = {'status': None, 'headers': None, 'body': None}
        elif status == 'replayed':
            wanted = {'status': after['response_status'],
                      'headers': after['response_headers'] + [['idempotent-replayed', 'true']]}
            if wanted_body := after['response_body']:
                wanted['body'] = wanted_body
        else:
            problem_differences(found, self.interim(status), code, row['retry_after'], row)
            wanted = {}
        for name, value in wanted.items():
            compare(found, name, value, row[name])

    def http_differences(self, found, verdict, row):
        name = f'no-op {self.event.column}' if verdict == 'no-op' else verdict
        changed, status, code = table.REPLIES[name]
        given = self.event.given
        compare(found, 'changed', changed, row['changed'])
        if code:
            status = given['response_status'] if status == 'given' else self.interim(status)
            problem_differences(found, status, code, ANY, row)
        elif status == 'given' or self.event.column == 'complete':
            compare(found, 'status', given['response_status'], row['status'])
            compare(found, 'headers', json.loads(given['response_headers']), row['headers'])
            compare(found, 'body', given['body'], row['body'])
        else:
            compare(found, 'status', self.before['response_status'], row['status'])
            compare(found, 'headers', self.before['response_headers'], row['headers'])
            if self.before['response_body'] is not None:
                compare(found, 'body', self.before['response_body'], row['body'])

    def interim(self, status):
        """The status of an interim answer: what idem_mark_unknown left, or 202."""
        return (self.before['response_status'] or 202) if status == 'interim' else status

    def retry_after(self, rule):
        """Seconds: the least of what is left and what has passed; at least 1."""
        if rule is None:
            return None
        since = {'lease': self.before['claimed_at'], 'unknown': self.before['unknown_at'] or self.clock[1]}[rule]
        bounds = []
        for now in self.clock:
            lengths = [(now - since).total_seconds()]
            if rule == 'lease':
                lengths.append((self.before['lease_expires_at'] - now).total_seconds())
            else:
                lengths.append(60)
            bounds.append(max(1, -int(-min(lengths) // 1)))
        return Within(min(bounds), max(bounds))


class New:
    """A value, not the old one."""

    def __init__(self, old):
        self.old = old

    def __eq__(self, other):
        return other is not None and other != self.old

    def __repr__(self):
        return f'a value other than {self.old}'


class Within:
    """A number between two."""

    def __init__(self, low, high):
        self.low, self.high = low, high

    def __eq__(self, other):
        return isinstance(other, int) and self.low <= other <= self.high

    def __repr__(self):
        return f'{self.low} .. {self.high}'


def compare(found, what, wanted, actual):
    if wanted is not ANY and wanted != actual:
        found.append(f'{what}: {actual!r} instead of {wanted!r}')


def problem_differences(found, status, code, retry_after, row):
    """Differences of an answer from the problem document with this code."""
    headers = {name.lower(): value for name, value in row['headers'] or []}
    compare(found, 'status', status, row['status'])
    compare(found, 'content-type', 'application/problem+json', headers.get('content-type'))
    if retry_after is ANY:
        compare(found, 'has retry-after', True, 1 <= int(headers.get('retry-after', 0)) <= 60)
    else:
        compare(found, 'retry-after', retry_after and str(retry_after), headers.get('retry-after'))
    document = json.loads(bytes(row['body'] or b'{}'))
    compare(found, 'code', code, document.get('code'))
    compare(found, 'status of the body', status, document.get('status'))
