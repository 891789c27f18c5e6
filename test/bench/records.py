#!/usr/bin/python3
"""Idempotency records against the hand-written statements of a careful engineer.

test/bench/run starts the server, sets PGHOST and PATH, and runs this.  Both
sides of a figure take turns, so that what else the machine does falls on both:
with one client transaction by transaction, else round by round.  The figure is
the median of the rounds' ratios.
"""

import os
import sys

import figures
from figures import Failed, p99, plural, psql, say
from pgbench import Load, Side, Turns, fsync_off

HERE = os.path.dirname(os.path.abspath(__file__))

HASH = r"'\x" + 'a5' * 32 + "'"
BODY = "'" + '{"payment": "' + '7' * 285 + '"}' + "'"

# A new key, at a random place of the index; of a principal among a thousand.
NEW_KEY = r"""
\set p random(0, 999)
\set k random(1, 9000000000000000000)
"""

CLAIM = rf"""
SELECT * FROM idem_try_insert('p' || :p, md5(:k), {HASH}, 'pay',
    call_timeout => '20 s', dedup_window => '24 h')
"""
CLAIM_BY_HAND = rf"""
INSERT INTO hand.request (principal_id, idempotency_key, request_hash, operation, state, attempt,
    resource_id, created_at, lease_expires_at, call_started_at, call_deadline, dedup_until)
VALUES ('p' || :p, md5(:k), {HASH}, 'pay', 'IN_PROGRESS', nextval('hand.attempt'),
    gen_random_uuid(), now(), now() + interval '30 s', now(), now() + interval '20 s',
    now() + interval '24 h')
ON CONFLICT (principal_id, idempotency_key) DO NOTHING
RETURNING attempt, resource_id, call_deadline
"""

COMPLETE = rf"""
SELECT * FROM idem_complete('p' || :p, md5(:k), :attempt, 201, {BODY}::bytea)
"""
COMPLETE_BY_HAND = rf"""
UPDATE hand.request SET state = 'COMPLETED', response_status = 201,
    response_headers = '[["content-type", "application/json"]]', response_body = {BODY}::bytea,
    completed_at = now(), expires_at = now() + interval '72 h'
WHERE principal_id = 'p' || :p AND idempotency_key = md5(:k)
    AND attempt = :attempt AND state = 'IN_PROGRESS'
RETURNING attempt
"""

# Each statement is a transaction: the claim is committed before the work.
CLAIM_AND_COMPLETE = NEW_KEY + CLAIM + r'\gset' + COMPLETE + ';'
CLAIM_AND_COMPLETE_BY_HAND = NEW_KEY + CLAIM_BY_HAND + r'\gset' + COMPLETE_BY_HAND + ';'

CLAIM_ONLY = NEW_KEY + CLAIM + ';'


def old_key(records):
    """The key of a record that hand.fill made."""
    return rf"""
\set n random(1, {records})
\set p :n % 1000
"""


REPLAY = rf"""
SELECT * FROM idem_try_insert('p' || :p, md5(:n), sha256('request'));
"""
# The same columns, from the row or constant.
REPLAY_BY_HAND = r"""
SELECT state AS outcome, false AS run, false AS changed, NULL::bigint AS attempt,
    NULL::uuid AS resource_id, NULL::timestamptz AS call_deadline, NULL::jsonb AS context,
    NULL::integer AS retry_after, expires_at, response_status AS status,
    response_headers AS headers, response_body AS body, response_body IS NOT NULL AS body_kept
FROM hand.request
WHERE principal_id = 'p' || :p AND idempotency_key = md5(:n);
"""

LINES = 1000
MANY = rf"""
\set k random(1, 9000000000000000000)
SELECT * FROM idem_try_insert_many('file',
    ARRAY(SELECT md5(:k || '/' || i) FROM generate_series(1, {LINES}) AS i),
    array_fill({HASH}::bytea, ARRAY[{LINES}]), 'pay');
"""
ONE_LINE = rf"""
\set k random(1, 9000000000000000000)
SELECT * FROM idem_try_insert('file', md5(:k), {HASH}, 'pay');
"""
LINES_IN_ONE_TRANSACTION = 'BEGIN;' + ONE_LINE * LINES + 'COMMIT;'

SWEEP = 'SELECT * FROM idem_sweep(1000);'
CLAIMS_PER_SECOND = 200


class Records(Turns):
    def __init__(self, quick):
        super().__init__(quick)
        self.rounds = 5 if quick else 15
        self.seconds = 1 if quick else 3
        self.large = 1_000_000 if quick else 10_000_000
        self.swept = 300_000 if quick else 1_000_000

    def database(self, name):
        psql('postgres', f'CREATE DATABASE {name}')
        psql(name, 'CREATE EXTENSION idem CASCADE')
        psql(name, '', '-f', os.path.join(HERE, 'records.sql'))

    def fill(self, name, table, records, expires="now() + interval '72 h'"):
        """Completed records, in a table as it is after a while."""
        say(f'{name}: {records:,} records in {table} ...')
        psql(name, f"TRUNCATE {table}")
        step = 1_000_000
        for first in range(1, records + 1, step):
            psql(name, f"CALL hand.fill('{table}', {first}, {min(first + step - 1, records)}, {expires})")
        psql(name, f'VACUUM (FREEZE, ANALYZE) {table}')
        psql(name, 'CHECKPOINT')

    def prepare(self):
        psql('postgres', 'CREATE ROLE shop LOGIN')
        self.database('small')
        self.fill('small', 'idem.idempotency', 10_000)
        self.fill('small', 'hand.request', 10_000)

    # The figures.

    def commit(self):
        sides = Side('small', CLAIM_AND_COMPLETE), Side('small', CLAIM_AND_COMPLETE_BY_HAND)
        for clients in 1, 4, 16:
            self.compare(f'claim and complete, {plural(clients, "client")}', *sides, 0.9, clients)
        for table in 'idem.idempotency', 'hand.request':
            if psql('small', f"SELECT count(*) FROM {table} WHERE state <> 'COMPLETED'") != '0':
                raise Failed(f'claims in {table} were not completed')
        with fsync_off():
            self.compare('claim and complete, 1 client, fsync off', *sides, None)

    def replay(self):
        for table in 'idem.idempotency', 'hand.request':
            self.fill('small', table, 10_000)
        key = old_key(10_000)
        answer = psql('small', REPLAY.replace(':p', '7').replace(':n', "'7'"))
        if not answer.startswith('REPLAY|f|f|'):
            raise Failed(f'no replay: {answer}')
        self.compare('replay, 1 client', Side('small', key + REPLAY),
                     Side('small', key + REPLAY_BY_HAND), 0.9)

    def many(self):
        lines = psql('small', MANY.replace(':k', "'one'")).split('\n')
        if len(lines) != LINES or '|STARTED|' not in lines[-1]:
            raise Failed(f'{len(lines)} lines were claimed')
        many = Side('small', MANY, LINES)
        self.compare('1,000 lines in one call, against one transaction each',
                     many, Side('small', ONE_LINE), 10)
        self.compare('1,000 lines in one call, against calls in one transaction',
                     many, Side('small', LINES_IN_ONE_TRANSACTION, LINES), None)

    def growth(self):
        self.database('large')
        self.fill('large', 'idem.idempotency', self.large)

        def reset():
            psql('small', 'TRUNCATE idem.idempotency')
            psql('small', "CALL hand.fill('idem.idempotency', 1, 10000, now() + interval '72 h')")
            psql('small', 'VACUUM (FREEZE, ANALYZE) idem.idempotency')

        reset()
        text = f'{self.large:,} records against 10,000'
        self.compare(f'replay, {text}', Side('large', old_key(self.large) + REPLAY),
                     Side('small', old_key(10_000) + REPLAY), 0.833)
        self.compare(f'claim and complete, {text}', Side('large', CLAIM_AND_COMPLETE),
                     Side('small', CLAIM_AND_COMPLETE, before=reset), 0.833)
        psql('postgres', 'DROP DATABASE large WITH (FORCE)')

    def sweep(self):
        """Latency of claims at a fixed rate, by turns with and without a sweep beside
        them that does not pause."""
        self.database('swept')
        self.fill('swept', 'idem.idempotency', self.swept, "now() - interval '1 s'")
        latencies = {True: [], False: []}
        left = self.swept
        while left > 0:
            for swept in True, False:
                latencies[swept] += self.claims(swept)
            before, left = left, int(psql('swept', 'SELECT count(*) FROM idem.idempotency '
                                                   'WHERE expires_at < now()'))
            say(f'sweep: p99 of claims so far {p99(latencies[True]):.1f} ms with a sweep, '
                f'{p99(latencies[False]):.1f} without; {left:,} records to go')
            if left >= before:
                raise Failed('the sweep does not get on')
        with_sweep, without = p99(latencies[True]), p99(latencies[False])
        self.figure(f'p99 of claims (ms) while {self.swept:,} records are swept, against no sweep',
                    with_sweep, without, without / with_sweep, 0.833)
        psql('postgres', 'DROP DATABASE swept WITH (FORCE)')

    def claims(self, swept):
        """One round of claims; their latencies."""
        sweeper = Load('swept', [SWEEP], seconds=3600) if swept else None
        try:
            load = Load('swept', [CLAIM_ONLY], clients=4, seconds=self.seconds, rate=CLAIMS_PER_SECOND, log=True)
            load.finish()
        finally:
            if sweeper:
                sweeper.stop()
        return load.latencies()


if __name__ == '__main__':
    sys.exit(figures.main(Records, ['commit', 'replay', 'many', 'growth', 'sweep']))
