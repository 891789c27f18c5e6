"""The sides that the relay's figures compare: the relay, a loop by hand, a
producer that only produces, and Debezium; each drains a backlog, or publishes
events as they come."""

import json
import os
import signal
import statistics
import subprocess
import time

import psycopg

from figures import Failed, say, wait_for
from kafka import Debezium, Kafka, Progress, status_bytes
from pgbench import Turns

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ['BENCH_FOLDER']
LOGICAL = {'host': '127.0.0.1', 'port': os.environ['BENCH_LOGICAL_PORT'], 'user': 'postgres', 'name': 'bench'}

CPUCLOCK_SCHED = 2      # of Linux, with clock_getcpuclockid(3)

EVENT_BYTES = 400
KEYS = 10_000
PARTITIONS = 6

EMIT = ("SELECT outbox_emit('{topic}', key => $1, event_type => 'order-placed', payload => $2::jsonb,"
        " aggregate_type => 'order', aggregate_id => $1)")
DEBEZIUM_PREFIX = 'outbox.event.'
DEBEZIUM_EMIT = ("INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
                 " VALUES ('{topic}', $1, 'order-placed', $2::jsonb)")


def bare(*arguments):
    """Runs bare.c; what it printed."""
    done = subprocess.run([os.path.join(HERE, 'bare'), *map(str, arguments)], text=True, capture_output=True,
                          env=dict(os.environ, PGDATABASE='bench'))
    if done.returncode != 0:
        raise Failed(f'bare {arguments[0]}: {done.stderr.strip()}')
    return json.loads(done.stdout)


def script(name):
    with open(os.path.join(HERE, name)) as file:
        return file.read()


def cpu_usec(pid):
    """What a process has used, in microseconds, with its threads that have ended."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED) * 1e6


class Drain:
    """What a drain came to."""

    def __init__(self, rows, seconds, cpu_usec_per_row, memory=0, wal_bytes=0):
        self.speed = rows / seconds
        self.cpu = cpu_usec_per_row
        self.memory = memory
        self.wal = wal_bytes / rows


class Sides(Turns):
    def __init__(self, quick):
        super().__init__(quick)
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
        self.db.execute(script('relay.sql'))
        self.db.execute('SET synchronous_commit = off')   # of the filling
        self.use_brokers(self.kafka)
        say('warming up ...')
        # until the broker's code is compiled, a row costs it three times as much
        self.produce(1_000_000, in_flight=1_000)
        self.drain(200_000)
        self.loop(100_000)

    def clean_up(self):
        if self.kafka:
            self.kafka.stop()

    def use_brokers(self, kafka):
        self.db.execute(f"ALTER SYSTEM SET idem.kafka_brokers = '{kafka.brokers}'")
        self.db.execute('SELECT pg_reload_conf()')
        wait_for('the relay', lambda: self.status('brokers, state') == (kafka.brokers, 'running'))

    def restart_relay(self):
        old = self.pid()
        self.db.execute('SELECT pg_terminate_backend(%s)', (old,))
        wait_for('a new worker', lambda: self.pid() not in (None, old) and self.status('state')[0] == 'running')

    def status(self, columns):
        return self.db.execute(f'SELECT {columns} FROM idem.relay_status').fetchone()

    def pid(self):
        return self.status('pid')[0]

    def topic(self, partitions=PARTITIONS, prefix='', kafka=None, **config):
        """A new topic, so that each round finds the same."""
        self.topics += 1
        name = f'{prefix}bench-{self.topics}'
        (kafka or self.kafka).create_topic(name, partitions, **config)
        return name

    # Drains: how fast a backlog goes out.

    def fill(self, table, rows, bytes=EVENT_BYTES, keys=KEYS, topic='t', keep=False):
        if not keep:
            self.db.execute(f'TRUNCATE {table}')
        self.db.execute('CALL hand.fill(%s::regclass, %s, %s, %s, %s)', (table, rows, bytes, keys, topic))

    def let_go(self, rows, patience=120):
        """Lets a relay that was stopped go on, and waits until that many rows are
        marked."""
        pid = self.pid()
        before = self.status('published')[0]
        lsn, = self.db.execute('SELECT pg_current_wal_insert_lsn()').fetchone()
        cpu, memory, end = cpu_usec(pid), 0, None
        start = time.time()
        os.kill(pid, signal.SIGCONT)

        def is_done():
            nonlocal memory, end
            memory = max(memory, status_bytes(pid, 'RssAnon', 'RssFile'))
            published, end = self.status('published, extract(epoch FROM last_published_at)::float8')
            return published - before >= rows

        try:
            wait_for('the drain', is_done, patience, pause=0.05)     # a look takes time from what is measured
        except Failed as error:
            raise Failed(f'{error}; {self.status("*")}') from None
        wal, = self.db.execute('SELECT pg_current_wal_insert_lsn() - %s', (lsn,)).fetchone()
        return Drain(rows, end - start, (cpu_usec(pid) - cpu) / rows, memory, float(wal))

    def stopped(self):
        return Stopped(self.pid())

    def drain(self, rows, topic=None, **shape):
        topic = topic or self.topic()
        progress = Progress(self.kafka, topic)
        with self.stopped():
            self.fill('idem.outbox', rows, topic=topic, **shape)
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

    def produce(self, rows, headers=True, bytes=EVENT_BYTES, topic=None, in_flight=10_000):
        result = bare('producer', self.kafka.brokers, topic or self.topic(), int(headers), rows, bytes, KEYS, in_flight)
        return Drain(rows, result['seconds'], result['cpu_usec_per_row'])

    def start_debezium(self, tuned):
        if not self.logical:
            server = {'host': LOGICAL['host'], 'port': LOGICAL['port'], 'autocommit': True}
            with psycopg.connect(dbname='postgres', **server) as db:
                db.execute('CREATE DATABASE bench')
            self.logical = psycopg.connect(dbname='bench', **server)
            self.logical.execute(script('debezium.sql'))
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

    def stop_debezium(self, connector):
        connector.java.stop()
        wait_for('the end of the replication', lambda: not self.logical.execute(
            'SELECT 1 FROM pg_replication_slots WHERE active').fetchone())
        self.logical.execute('SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots')

    def drain_debezium(self, connector, rows):
        topic = self.topic(prefix=DEBEZIUM_PREFIX)
        progress = Progress(self.kafka, topic)
        pid = connector.java.process.pid
        with Stopped(pid):
            self.logical.execute('TRUNCATE outbox')
            self.logical.execute('CALL fill(%s, %s, %s, %s)',
                                 (rows, EVENT_BYTES, KEYS, topic.removeprefix(DEBEZIUM_PREFIX)))
            cpu = cpu_usec(pid)
            start = time.time()
        wait_for('the drain', lambda: progress.records() >= rows, 300, pause=0.05)
        elapsed = time.time() - start
        progress.close()
        return Drain(rows, elapsed, (cpu_usec(pid) - cpu) / rows, connector.java.memory())

    # Events as they come.

    def live(self, rate, topic, seconds, conninfo='dbname=bench', emit=EMIT, connections=4, keys=KEYS):
        """Events at a steady rate; of each its number, and when it was written,
        committed and received.  The first second warms up."""
        done = subprocess.run(
            [os.path.join(HERE, 'live'), conninfo, emit.format(topic=topic.removeprefix(DEBEZIUM_PREFIX)),
             *map(str, (connections, rate, rate * (seconds + 1), EVENT_BYTES, keys)), self.kafka.brokers, topic],
            text=True, capture_output=True)
        if done.returncode != 0:
            raise Failed(f'live: {done.stderr.strip()}')
        return [tuple(map(float, line.split())) for line in done.stdout.splitlines()][rate:]

    def live_relay(self, rate, seconds, topic=None, **options):
        """Latencies in milliseconds: from commit to mark, which is the time of the
        acknowledgement or a little later; from INSERT to consumer."""
        topic = topic or self.topic(partitions=1)
        times = self.live(rate, topic, seconds, **options)

        def marks():
            marks = dict(self.db.execute(
                "SELECT (payload ->> 'n')::float8, extract(epoch FROM published_at)::float8 FROM idem.outbox "
                'WHERE topic = %s AND published_at IS NOT NULL', (topic,)).fetchall())
            return marks if all(n in marks for n, *_ in times) else None

        marked = wait_for('the marks', marks)
        return ([(marked[n] - committed) * 1000 for n, _, committed, _ in times],
                [(received - written) * 1000 for _, written, _, received in times])

    def live_debezium(self, rate, seconds):
        times = self.live(rate, self.topic(partitions=1, prefix=DEBEZIUM_PREFIX), seconds, emit=DEBEZIUM_EMIT,
                          conninfo=(f'host={LOGICAL["host"]} port={LOGICAL["port"]} dbname={LOGICAL["name"]} '
                                    f'user={LOGICAL["user"]}'))
        return [(received - written) * 1000 for _, written, _, received in times]


class Stopped:
    """A process that stands still for a while."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *error):
        os.kill(self.pid, signal.SIGCONT)


def more(ours, baseline):
    """Of which more is better: the medians and the ratio."""
    ours, baseline = statistics.median(ours), statistics.median(baseline)
    return ours, baseline, ours / baseline


def less(ours, baseline):
    """Of which less is better: the medians and the ratio."""
    ours, baseline = statistics.median(ours), statistics.median(baseline)
    return ours, baseline, baseline / ours
