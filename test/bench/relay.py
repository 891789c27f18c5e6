#!/usr/bin/python3
"""The relay against Debezium, a loop written by hand and a producer that only
produces, on one real Kafka.

test/bench/run starts two servers (the second for Debezium, which needs another
wal_level) and runs this.  Sides take turns, round by round; a figure is the
median of the rounds' ratios.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time

import psycopg

import figures
from figures import Failed, p50, p99, say
from kafka import Debezium, Kafka, Progress, status_bytes, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ['BENCH_FOLDER']
LOGICAL = {'host': '127.0.0.1', 'port': os.environ['BENCH_LOGICAL_PORT'], 'user': 'postgres', 'name': 'bench'}

EVENT_BYTES = 400
KEYS = 10_000
PARTITIONS = 6
TICKS = os.sysconf('SC_CLK_TCK')

EMIT = ("SELECT outbox_emit('{topic}', key => $1, event_type => 'order-placed', payload => $2::jsonb,"
        " aggregate_type => 'order', aggregate_id => $1)")
DEBEZIUM_EMIT = ("INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
                 " VALUES ('{topic}', $1, 'order-placed', $2::jsonb)")


def bare(*arguments):
    """Runs bare.c; what it printed."""
    done = subprocess.run([os.path.join(HERE, 'bare'), *map(str, arguments)], text=True, capture_output=True,
                          env=dict(os.environ, PGDATABASE='bench'))
    if done.returncode != 0:
        raise Failed(f'bare {arguments[0]}: {done.stderr.strip()}')
    return json.loads(done.stdout)


class Drain:
    """What a drain came to."""

    def __init__(self, rows, seconds, cpu_usec_per_row, memory=0, wal_bytes=0):
        self.speed = rows / seconds
        self.seconds = seconds
        self.cpu = cpu_usec_per_row
        self.memory = memory
        self.wal = wal_bytes / rows


class Relay(figures.Bench):
    def __init__(self, quick):
        super().__init__(quick)
        self.rounds = 3 if quick else 5
        self.rows = 100_000 if quick else 500_000
        self.live_seconds = 8 if quick else 60
        self.topics = 0
        self.kafka = self.db = self.logical = None

    # Before and after.

    def prepare(self):
        say('starting Kafka ...')
        self.kafka = Kafka(FOLDER, os.environ['BENCH_KAFKA_JARS'])
        with psycopg.connect(dbname='postgres', autocommit=True) as db:
            db.execute('CREATE DATABASE bench')
        self.db = psycopg.connect(dbname='bench', autocommit=True)
        self.db.execute('CREATE EXTENSION idem CASCADE')
        with open(os.path.join(HERE, 'relay.sql')) as file:
            self.db.execute(file.read())
        self.db.execute('SET synchronous_commit = off')   # of the filling
        self.use_brokers(self.kafka)
        say('warming up ...')
        self.drain(20_000)
        self.loop(20_000)
        self.produce(20_000)

    def clean_up(self):
        if self.kafka:
            self.kafka.stop()

    def use_brokers(self, kafka):
        self.db.execute(f"ALTER SYSTEM SET idem.kafka_brokers = '{kafka.brokers}'")
        self.db.execute('SELECT pg_reload_conf()')
        wait_for('the relay', lambda: self.status('brokers, state') == (kafka.brokers, 'running'))

    def status(self, columns):
        return self.db.execute(f'SELECT {columns} FROM idem.relay_status').fetchone()

    def pid(self):
        return self.status('pid')[0]

    def topic(self, partitions=PARTITIONS, **config):
        """A new topic, so that each round finds the same."""
        self.topics += 1
        name = f'bench-{self.topics}'
        self.kafka.create_topic(name, partitions, **config)
        return name

    # Drains: how fast a backlog goes out.

    def fill(self, table, rows, bytes=EVENT_BYTES, keys=KEYS, topic='t'):
        self.db.execute(f'TRUNCATE {table}')
        self.db.execute('CALL hand.fill(%s::regclass, %s, %s, %s, %s)', (table, rows, bytes, keys, topic))

    def backlog(self, rows, topic, **shape):
        """A backlog, and a relay that is stopped before it."""
        os.kill(self.pid(), signal.SIGSTOP)
        try:
            self.fill('idem.outbox', rows, topic=topic, **shape)
        except BaseException:
            os.kill(self.pid(), signal.SIGCONT)
            raise

    def let_go(self, rows):
        """Lets the relay go and waits until that many rows are marked."""
        pid = self.pid()
        before = self.status('published')[0]
        lsn, = self.db.execute('SELECT pg_current_wal_insert_lsn()').fetchone()
        cpu, memory = cpu_usec(pid), 0
        start = time.time()
        os.kill(pid, signal.SIGCONT)
        while True:
            memory = max(memory, status_bytes(pid, 'RssAnon', 'RssFile'))
            published, end = self.status('published, extract(epoch FROM last_published_at)')
            if published - before >= rows:
                break
            if time.time() - start > 120:
                raise Failed(f'{published - before} of {rows} rows were published; {self.status("*")}')
            time.sleep(0.01)
        wal, = self.db.execute('SELECT pg_current_wal_insert_lsn() - %s', (lsn,)).fetchone()
        return Drain(rows, float(end) - start, (cpu_usec(pid) - cpu) / rows, memory, float(wal))

    def drain(self, rows, topic=None, **shape):
        topic = topic or self.topic()
        progress = Progress(self.kafka, topic)
        self.backlog(rows, topic, **shape)
        result = self.let_go(rows)
        if progress.records() != rows:
            raise Failed(f'{progress.records()} records of {rows} rows')
        progress.close()
        return result

    def loop(self, rows, headers=True):
        """The same by hand."""
        self.fill('hand.outbox', rows)
        lsn, = self.db.execute('SELECT pg_current_wal_insert_lsn()').fetchone()
        result = bare('loop', self.kafka.brokers, self.topic(), int(headers))
        if result['rows'] != rows:
            raise Failed(f'the loop published {result["rows"]} of {rows} rows')
        wal, = self.db.execute('SELECT pg_current_wal_insert_lsn() - %s', (lsn,)).fetchone()
        return Drain(rows, result['seconds'], result['cpu_usec_per_row'], wal_bytes=float(wal))

    def produce(self, rows, headers=True):
        result = bare('producer', self.kafka.brokers, self.topic(), int(headers), rows, EVENT_BYTES, KEYS, 10_000)
        return Drain(rows, result['seconds'], result['cpu_usec_per_row'])

    # The figures.

    def backlogs(self):
        sides = {
            'relay': lambda: self.drain(self.rows),
            'loop': lambda: self.loop(self.rows),
            'producer': lambda: self.produce(self.rows),
        }
        if not self.quick:
            sides['loop without headers'] = lambda: self.loop(self.rows, headers=False)
            sides['producer without headers'] = lambda: self.produce(self.rows, headers=False)
        results = {side: [] for side in sides}
        for number in range(self.rounds):
            for side in (sides if number % 2 == 0 else reversed(sides)):
                self.db.execute('CHECKPOINT')
                result = sides[side]()
                results[side].append(result)
                say(f'drain, round {number + 1} of {self.rounds}: {side}: {result.speed:,.0f} rows/s, '
                    f'{result.cpu:.2f} us of its CPU a row')
        self.backlog_results = results
        self.ratio(f'drain of {self.rows:,} rows, against a loop with the same headers',
                   results['relay'], results['loop'], 1.2)
        self.ratio(f'drain of {self.rows:,} rows, against a producer with the same headers',
                   results['relay'], results['producer'], 0.6)
        for side in sides:
            if side.endswith('without headers'):
                self.ratio(f'drain of {self.rows:,} rows, against a {side}', results['relay'], results[side], None)
        self.figure('bytes of log for a marked row, against the loop',
                    *least([r.wal for r in results['relay']], [r.wal for r in results['loop']]), None)

    def ratio(self, name, ours, baseline, goal):
        self.figure(name, statistics.median(r.speed for r in ours), statistics.median(r.speed for r in baseline),
                    statistics.median(a.speed / b.speed for a, b in zip(ours, baseline)), goal)


def least(ours, baseline):
    """Figures of which less is better: their medians and the ratio."""
    ours, baseline = statistics.median(ours), statistics.median(baseline)
    return ours, baseline, baseline / ours


def cpu_usec(pid):
    """What a process and its threads have used, in microseconds."""
    with open(f'/proc/{pid}/stat') as stat:
        fields = stat.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000 / TICKS


if __name__ == '__main__':
    sys.exit(figures.main(Relay, ['backlogs']))
