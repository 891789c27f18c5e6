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

    def topic(self, partitions=PARTITIONS, prefix='', **config):
        """A new topic, so that each round finds the same."""
        self.topics += 1
        name = f'{prefix}bench-{self.topics}'
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
                    *less([r.wal for r in results['relay']], [r.wal for r in results['loop']]), None)

    def debezium(self):
        """Debezium's drain and latency, in both configurations; the relay's beside it."""
        ours = getattr(self, 'backlog_results', {}).get('relay') or [self.drain(self.rows)]
        for tuned, goal in (False, 7), (True, 5):
            name = 'tuned' if tuned else 'default'
            connector = self.start_debezium(tuned)
            try:
                results = []
                for number in range(1 if self.quick else 3):
                    results.append(self.drain_debezium(connector, self.rows))
                    say(f'drain: Debezium {name}: {results[-1].speed:,.0f} rows/s, '
                        f'{results[-1].memory / 1e6:,.0f} MB')
                self.figure(f'drain of {self.rows:,} rows, against Debezium {name}',
                            *more([r.speed for r in ours], [r.speed for r in results]), goal)
                self.figure(f'memory in a drain (MB), against Debezium {name}',
                            *less([r.memory / 1e6 for r in ours], [r.memory / 1e6 for r in results]), 10)
                if tuned or not self.quick:
                    self.against_debezium(name, connector, tuned)
            finally:
                connector.java.stop()
                wait_for('the end of the replication', lambda: not self.logical.execute(
                    'SELECT 1 FROM pg_replication_slots WHERE active').fetchone())
                self.logical.execute('SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots')

    def start_debezium(self, tuned):
        if not self.logical:
            with psycopg.connect(host=LOGICAL['host'], port=LOGICAL['port'], dbname='postgres', autocommit=True) as db:
                db.execute('CREATE DATABASE bench')
            self.logical = psycopg.connect(host=LOGICAL['host'], port=LOGICAL['port'], dbname='bench', autocommit=True)
            with open(os.path.join(HERE, 'debezium.sql')) as file:
                self.logical.execute(file.read())
            self.logical.execute('SET synchronous_commit = off')
        say(f'starting Debezium {"tuned" if tuned else "default"} ...')
        jars = [os.environ['BENCH_DEBEZIUM_JARS'], os.environ['BENCH_KAFKA_JARS']]
        connector = Debezium(FOLDER, jars, self.kafka, LOGICAL, 'public.outbox', tuned)

        def streams():
            connector.java.check()
            return self.logical.execute('SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active',
                                        (connector.slot,)).fetchone()

        try:
            wait_for('the replication slot', streams)
            self.drain_debezium(connector, 20_000)
        except BaseException:
            connector.java.stop()
            raise
        return connector

    def drain_debezium(self, connector, rows):
        topic = self.topic(prefix='outbox.event.')
        progress = Progress(self.kafka, topic)
        connector.freeze()
        try:
            self.logical.execute('TRUNCATE outbox')
            self.logical.execute('CALL fill(%s, %s, %s, %s)',
                                 (rows, EVENT_BYTES, KEYS, topic.removeprefix('outbox.event.')))
            cpu = cpu_usec(connector.java.process.pid)
        finally:
            connector.thaw()
        start = time.time()
        wait_for('the drain', lambda: progress.records() >= rows, 300)
        elapsed = time.time() - start
        progress.close()
        return Drain(rows, elapsed, (cpu_usec(connector.java.process.pid) - cpu) / rows, connector.java.memory())

    # Latency.

    def live(self, rate, topic, conninfo='dbname=bench', emit=EMIT, connections=4, bytes=EVENT_BYTES, keys=KEYS):
        """Events at a steady rate; of each, when it was written, committed and received."""
        done = subprocess.run(
            [os.path.join(HERE, 'live'), conninfo, emit.format(topic=topic.removeprefix('outbox.event.')),
             *map(str, (connections, rate, rate * (self.live_seconds + 1), bytes, keys)), self.kafka.brokers, topic],
            text=True, capture_output=True)
        if done.returncode != 0:
            raise Failed(f'live: {done.stderr.strip()}')
        times = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
        return times[rate:]     # the first second warms up

    def live_relay(self, rate, **options):
        """Latencies in milliseconds: commit to mark, INSERT to consumer."""
        topic = self.topic(partitions=1)
        times = self.live(rate, topic, **options)
        marks = wait_for('the marks', lambda: self.marks(topic, times))
        return ([(marks[n] - committed) * 1000 for n, _, committed, _ in times],
                [(received - written) * 1000 for _, written, _, received in times])

    def marks(self, topic, times):
        marks = dict(self.db.execute(
            "SELECT (payload ->> 'n')::float, extract(epoch FROM published_at)::float FROM idem.outbox "
            'WHERE topic = %s AND published_at IS NOT NULL', (topic,)).fetchall())
        return marks if all(n in marks for n, *_ in times) else None

    def latency(self):
        """The mark is later than the acknowledgement, by little."""
        for rate in 300, 3000:
            marked, received = self.live_relay(rate, connections=4 if rate < 1000 else 16)
            pace = bare('pace', self.kafka.brokers, self.topic(1), 1, rate * self.live_seconds, EVENT_BYTES, KEYS, rate)
            what = f'commit to mark at {rate:,} events/s (ms)'
            limits = (1.5, 8) if rate == 300 else (None, None)
            for name, ours, baseline, limit in (('p50', p50(marked), pace['p50'], limits[0]),
                                                ('p99', p99(marked), pace['p99'], limits[1])):
                if limit:
                    self.figure(f'{what}, {name}, against its limit', ours, limit, limit / ours, 1)
                self.figure(f'{what}, {name}, against a producer\'s acknowledgements', ours, baseline,
                            baseline / ours, None)
            if rate == 300:
                self.received_at_300 = received
            say(f'live, {rate} events/s: INSERT to consumer p50 {p50(received):.2f} ms, p99 {p99(received):.2f} ms')

    def against_debezium(self, name, connector, tuned):
        topic = self.topic(partitions=1, prefix='outbox.event.')
        times = self.live(300, topic, emit=DEBEZIUM_EMIT, conninfo=(
            f'host={LOGICAL["host"]} port={LOGICAL["port"]} dbname={LOGICAL["name"]} user={LOGICAL["user"]}'))
        theirs = [(received - written) * 1000 for _, written, _, received in times]
        ours = getattr(self, 'received_at_300', None) or self.live_relay(300)[1]
        what = 'INSERT to consumer at 300 events/s (ms)'
        self.figure(f'{what}, p50, against Debezium {name}', *less([p50(ours)], [p50(theirs)]), 8 if tuned else None)
        self.figure(f'{what}, p99, against Debezium {name}', *less([p99(ours)], [p99(theirs)]), 3 if tuned else None)

    def ratio(self, name, ours, baseline, goal):
        self.figure(name, statistics.median(r.speed for r in ours), statistics.median(r.speed for r in baseline),
                    statistics.median(a.speed / b.speed for a, b in zip(ours, baseline)), goal)


def more(ours, baseline):
    """Figures of which more is better: their medians and the ratio."""
    ours, baseline = statistics.median(ours), statistics.median(baseline)
    return ours, baseline, ours / baseline


def less(ours, baseline):
    """Figures of which less is better: their medians and the ratio."""
    ours, baseline = statistics.median(ours), statistics.median(baseline)
    return ours, baseline, baseline / ours


def cpu_usec(pid):
    """What a process and its threads have used, in microseconds."""
    with open(f'/proc/{pid}/stat') as stat:
        fields = stat.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000 / TICKS


if __name__ == '__main__':
    sys.exit(figures.main(Relay, ['backlogs', 'latency', 'debezium']))
