#!/usr/bin/python3
"""The relay against Debezium, a loop written by hand and a producer that only
produces, on one real Kafka.

test/bench/run starts two servers (the second for Debezium, which needs another
wal_level) and runs this.  Sides take turns, round by round; a figure is the
median of the rounds' ratios.
"""

import os
import signal
import statistics
import sys
import time

import psycopg

import figures
from figures import Failed, p50, p99, plural, say, wait_for
from kafka import Kafka, Progress, status_bytes
from pgbench import Side, fsync_off
from sides import FOLDER, KEYS, Sides, Stopped, bare, cpu_usec, less, more

EVENT = """(topic, partition_key, aggregate_type, aggregate_id, event_type, payload)
VALUES ('nowhere', 'key-' || :k, 'order', 'key-' || :k, 'order-placed',
    '{"n": 1, "pad": "PAD"}')""".replace('PAD', 'x' * 380)
MANY_EVENTS = """(topic, partition_key, aggregate_type, aggregate_id, event_type, payload)
SELECT 'nowhere', 'key-' || i, 'order', 'key-' || i, 'order-placed',
    jsonb_build_object('n', i, 'pad', repeat('x', 380)) FROM generate_series(1, 1000) AS i"""
NEW_KEY = '\\set k random(1, 10000)\n'


class Relay(Sides):
    def __init__(self, quick):
        super().__init__(quick)
        self.rounds = 3 if quick else 5
        self.seconds = 1 if quick else 3
        self.rows = 100_000 if quick else 500_000
        self.live_seconds = 5 if quick else 60
        self.relay_drains = self.relay_received = None

    def turns(self, what, sides, rounds=None):
        """Drains of several sides, by turns in changing order; those of each."""
        results = {side: [] for side in sides}
        rounds = rounds or self.rounds
        for number in range(rounds):
            for side in list(sides)[::1 if number % 2 == 0 else -1]:
                self.db.execute('CHECKPOINT')
                result = sides[side]()
                results[side].append(result)
                say(f'{what}, round {number + 1} of {rounds}: {side}: {result.speed:,.0f} rows/s'
                    + (f', {result.cpu:.2f} us of its CPU a row' if result.cpu else ''))
        return results

    def faster(self, name, ours, baseline, goal):
        """A figure of the speeds of drains, round by round."""
        self.figure(name, statistics.median(r.speed for r in ours), statistics.median(r.speed for r in baseline),
                    statistics.median(a.speed / b.speed for a, b in zip(ours, baseline)), goal)

    # The figures.

    def drain_backlog(self):
        sides = {
            'relay': lambda: self.drain(self.rows),
            'loop': lambda: self.loop(self.rows),
            'producer': lambda: self.produce(self.rows),
        }
        if not self.quick:
            sides['loop without headers'] = lambda: self.loop(self.rows, headers=False)
            sides['producer without headers'] = lambda: self.produce(self.rows, headers=False)
        results = self.turns('drain', sides)
        self.relay_drains = results['relay']
        what = f'drain of {self.rows:,} rows'
        for side, goal in zip(sides, (None, 1.2, 0.6, None, None)):
            if side != 'relay':
                self.faster(f'{what}, against a {side}', results['relay'], results[side], goal)
        memory = max(r.memory for r in results['relay']) / 1e6
        self.figure(f'{what}: memory (MB), against its limit', memory, 100, 100 / memory, 1)
        self.figure('bytes of log for a marked row, against a loop',
                    *less([r.wal for r in results['relay']], [r.wal for r in results['loop']]), None)

    def latency(self):
        for rate in 300, 3000:
            cpu = cpu_usec(self.pid())
            marked, received = self.live_relay(rate, self.live_seconds, connections=4 if rate < 1000 else 16)
            cpu = (cpu_usec(self.pid()) - cpu) / rate / (self.live_seconds + 1)
            pace = bare('pace', self.kafka.brokers, self.topic(1), 1, rate * self.live_seconds, 400, KEYS, rate)
            what = f'commit to mark at {rate:,} events/s (ms)'
            if rate == 300:
                self.relay_received = received
                for name, ours, limit in ('p50', p50(marked), 1.5), ('p99', p99(marked), 8):
                    self.figure(f'{what}, {name}, against its limit', ours, limit, limit / ours, 1)
            for name, ours in ('p50', p50(marked)), ('p99', p99(marked)):
                self.figure(f'{what}, {name}, against a producer\'s acknowledgements', ours, pace[name],
                            pace[name] / ours, None)
            say(f'live, {rate} events/s: INSERT to consumer p50 {p50(received):.2f} ms, p99 {p99(received):.2f} ms; '
                f'{cpu:.0f} us of CPU an event')

    def debezium(self):
        """In both configurations, one after the other."""
        ours = self.relay_drains or [self.drain(self.rows)]
        received = self.relay_received or self.live_relay(300, self.live_seconds)[1]
        for name, drain_goal, goals in ('default', 7, (None, None)), ('tuned', 5, (8, 3)):
            connector = self.start_debezium(name == 'tuned')
            try:
                theirs = []
                for number in range(1 if self.quick else 3):
                    theirs.append(self.drain_debezium(connector, self.rows))
                    say(f'drain: Debezium {name}: {theirs[-1].speed:,.0f} rows/s, {theirs[-1].cpu:.1f} us of its '
                        f'CPU a row, {theirs[-1].memory / 1e6:,.0f} MB')
                # a backlog is mostly what a start finds; its JVM gets twice as fast with time
                for age, drains in ('that has just started', theirs[:1]), ('that is warm', theirs[1:]):
                    if drains:
                        self.figure(f'drain of {self.rows:,} rows, against Debezium {name} {age}',
                                    *more([r.speed for r in ours], [r.speed for r in drains]), drain_goal)
                self.figure(f'CPU of a row in a drain (us), against Debezium {name}',
                            *less([r.cpu for r in ours], [r.cpu for r in theirs]), None)
                self.figure(f'memory in a drain (MB), against Debezium {name}',
                            *less([r.memory / 1e6 for r in ours], [r.memory / 1e6 for r in theirs]), None)
                if name == 'tuned' or not self.quick:
                    live = self.live_debezium(300, self.live_seconds)
                    for part, measure, goal in ('p50', p50, goals[0]), ('p99', p99, goals[1]):
                        self.figure(f'INSERT to consumer at 300 events/s (ms), {part}, against Debezium {name}',
                                    *less([measure(received)], [measure(live)]), goal)
            finally:
                self.stop_debezium(connector)

    def snapshot(self):
        """While another session holds a snapshot, from before all the rows."""
        def held():
            with psycopg.connect(dbname='bench') as holder:
                holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                holder.execute('SELECT 1')
                return self.drain(self.rows)

        results = self.turns('snapshot', {'held': held, 'none': lambda: self.drain(self.rows)},
                             2 if self.quick else self.rounds)
        self.faster('drain while another session holds a snapshot, against none', *results.values(), 0.9)

    def held_key(self):
        """Events of other keys while a parked row holds 300,000 rows of one key."""
        rows = 50_000 if self.quick else 300_000
        topic, other = self.topic(partitions=1), self.topic(partitions=1)
        without = self.live_relay(300, self.live_seconds, topic=other)
        self.db.execute('TRUNCATE idem.outbox')
        self.db.execute("INSERT INTO idem.outbox (topic, partition_key, payload, parked_at) VALUES (%s, 'held', '0', now())",
                        (topic,))
        self.restart_relay()    # it reads what is parked
        before = self.status('published')[0]
        self.db.execute("INSERT INTO idem.outbox (topic, partition_key, payload) "
                        "SELECT %s, 'held', to_jsonb(-i) FROM generate_series(1, %s) AS i", (topic, rows))
        held = self.live_relay(300, self.live_seconds, topic=topic)
        published = self.db.execute("SELECT count(*) FROM idem.outbox WHERE partition_key = 'held' "
                                    'AND published_at IS NOT NULL').fetchone()[0]
        if published:
            raise Failed(f'{published} rows of the held key were published, {self.status("published")[0] - before} in all')
        for part, measure in ('p50', p50), ('p99', p99):
            self.figure(f'commit to mark (ms), {part}, with {rows:,} rows of a held key, against without',
                        *less([measure(held[0])], [measure(without[0])]), 0.909 if part == 'p50' else None)
        self.db.execute('TRUNCATE idem.outbox')
        self.restart_relay()

    def leader(self):
        """Three nodes, of which one leads one of six partitions and is killed."""
        cluster = Kafka(os.path.join(FOLDER, 'cluster'), os.environ['BENCH_KAFKA_JARS'], 3)
        try:
            self.use_brokers(cluster)
            topic = self.topic(kafka=cluster, assignment=[1, 2, 1, 2, 1, 3])
            progress = Progress(cluster, topic)
            speeds = []
            with Stopped(self.pid()):
                self.fill('idem.outbox', self.rows, topic=topic)
                self.let_go(self.rows)
            live = self.rows - progress.of_partition(5)
            for killed in False, True:
                if killed:
                    cluster.nodes[2].stop(signal.SIGKILL)
                    wait_for('a partition without a leader', lambda: not cluster.is_led(topic))
                with Stopped(self.pid()):
                    self.fill('idem.outbox', self.rows, topic=topic)
                    speeds.append(self.let_go(live if killed else self.rows).speed * (1 if killed else live / self.rows))
                say(f'leader: {speeds[-1]:,.0f} rows/s to five partitions, the sixth {"without a leader" if killed else "led"}')
            self.figure('drain to live partitions, one without a leader, against all led',
                        speeds[1], speeds[0], speeds[1] / speeds[0], 0.8)
        finally:
            self.db.execute('TRUNCATE idem.outbox')
            self.use_brokers(self.kafka)
            cluster.stop()

    def limit(self):
        """With max_in_flight_per_key = 1, by the number of keys."""
        for keys in (10_000,) if self.quick else (10_000, 100):
            def limited(keys=keys):
                topic = self.topic()
                self.db.execute('INSERT INTO idem.topic (topic, max_in_flight_per_key) VALUES (%s, 1)', (topic,))
                return self.drain(self.rows, topic=topic, keys=keys)

            results = self.turns('limit', {'limited': limited, 'free': lambda keys=keys: self.drain(self.rows, keys=keys)}, 2)
            self.faster(f'drain of {keys:,} keys with one row of a key in flight, against no limit', *results.values(), None)

    def growth(self):
        """Of cost with keys, partitions, writers and the size of the table."""
        rows = min(self.rows, 100_000)
        free = {'10,000 keys, 6 partitions': lambda: self.drain(rows)}
        shapes = {'10 keys': lambda: self.drain(rows, keys=10),
                  '1,000,000 keys': lambda: self.drain(rows, keys=1_000_000)}
        for partitions in (1, 100) if self.quick else (1, 100, 1000):
            shapes[plural(partitions, 'partition')] = lambda n=partitions: self.drain(rows, topic=self.begun_topic(n))
        results = self.turns('growth', {**free, **shapes}, 1 if self.quick else 3)
        for shape in shapes:
            self.faster(f'drain, {shape}, against 10,000 keys and 6 partitions', results[shape], *(results[name] for name in free), None)

        if not self.quick:
            one, many = (p50(self.live_relay(1000, 20, connections=n)[0]) for n in (2, 64))
            self.figure('commit to mark at 1,000 events/s (ms), p50, 64 writers, against 2', many, one, one / many, None)
        for size in (200_000,) if self.quick else (1_000_000, 10_000_000):
            self.size(size, rows)

    def begun_topic(self, partitions):
        """A topic with records in each partition: the first costs the broker a sync."""
        topic = self.topic(partitions)
        self.drain(20 * partitions, topic=topic)
        return topic

    def size(self, size, rows):
        """Drains of a table that holds many published rows, and the start of a worker."""
        small = [self.drain(rows) for _ in range(2)]
        say(f'growth: {size:,} published rows ...')
        self.db.execute('TRUNCATE idem.outbox')
        for first in range(0, size, 100_000):
            self.db.execute('CALL hand.fill_published(100000, %s)', (400,))
        self.db.execute('VACUUM (FREEZE, ANALYZE) idem.outbox')
        start = time.time()
        self.restart_relay()
        with Stopped(self.pid()):
            self.fill('idem.outbox', 1, topic=self.topic(), keep=True)
            self.let_go(1)
        say(f'growth: a worker that starts with {size:,} published rows has looked at them in {time.time() - start:.1f} s')
        large = []
        for _ in range(2):
            with Stopped(self.pid()):
                self.fill('idem.outbox', rows, topic=self.topic(), keep=True)
                large.append(self.let_go(rows))
        self.faster(f'drain, {size:,} published rows in the table, against none', large, small, 0.833)
        self.db.execute('TRUNCATE idem.outbox')

    def payloads(self):
        for bytes in (100, 900_000) if self.quick else (100, 4_000, 64_000, 900_000):
            rows = min(self.rows, (50 if self.quick else 200) * 1_000_000 // bytes)
            results = self.turns(f'{bytes:,} bytes', {
                'relay': lambda: self.drain(rows, bytes=bytes),
                'producer': lambda: self.produce(rows, bytes=bytes)}, 1 if self.quick else 3)
            self.faster(f'drain of payloads of {bytes:,} bytes, against a producer with the same headers', *results.values(), None)
            memory = max(r.memory for r in results['relay']) / 1e6
            self.figure(f'memory draining payloads of {bytes:,} bytes (MB), against its limit', memory, 100, 100 / memory, 1)

    def compression(self):
        """By the broker: the topic says so, and the client sends plain batches."""
        results = self.turns('compression', {
            kind: lambda kind=kind: self.drain(self.rows, topic=self.topic(**{'compression.type': kind}))
            for kind in ('lz4', 'producer')}, 1 if self.quick else 3)
        self.faster('drain to a topic that the broker compresses (lz4), against plain', *results.values(), None)

    def idle(self):
        """What a worker costs that has nothing to do."""
        seconds = 5 if self.quick else 60
        pid = self.pid()
        wait_for('rest', lambda: self.status('in_flight')[0] == 0)

        def looked():
            return self.db.execute(
                "SELECT (SELECT query_start FROM pg_stat_activity WHERE backend_type = 'idem relay'),"
                ' (SELECT sum(seq_scan + coalesce(idx_scan, 0)) FROM pg_stat_user_tables)').fetchone()

        before = None

        def stands():
            nonlocal before
            last, before = before, looked()
            return last == before

        # what was done before is told to the statistics up to ten seconds late
        wait_for('statistics at rest', stands, pause=11)
        cpu, start = cpu_usec(pid), time.monotonic()
        wait_for('time', lambda: time.monotonic() - start >= seconds)
        share = (cpu_usec(pid) - cpu) / 1e6 / seconds * 100
        if looked() != before:
            raise Failed(f'an idle worker did something: {before}, {looked()}')
        share = max(share, 0.001)
        self.figure('idle worker: per cent of a core, against its limit', share, 0.1, 0.1 / share, 1)

    def stalled(self):
        """A broker that stands still, while rows are in flight to it."""
        seconds = 5 if self.quick else 25
        pid, topic = self.pid(), self.topic()
        rest = time.monotonic()
        wait_for('time', lambda: time.monotonic() - rest >= 3)     # a new stream follows a load, and knows nothing yet
        self.drain(100, topic=topic)
        with Stopped(self.kafka.nodes[0].process.pid):
            self.fill('idem.outbox', 20_000, topic=topic)
            wait_for('a full window', lambda: self.status('in_flight')[0] >= 1000)
            cpu, start = cpu_usec(pid), time.monotonic()
            wait_for('time', lambda: time.monotonic() - start >= seconds)
            cores = (cpu_usec(pid) - cpu) / 1e6 / seconds
            memory = status_bytes(pid, 'RssAnon', 'RssFile') / 1e6
        self.figure(f'cores used while the broker stands still for {seconds} s', max(cores, 0.001), 1, 1 / max(cores, 0.001), None)
        say(f'stalled: {memory:.0f} MB')

    def insert(self):
        """An event a transaction, by an application, and a thousand in a statement."""
        with psycopg.connect(dbname='bench', autocommit=True) as db:
            db.execute('CREATE ROLE shop LOGIN')
            db.execute("SELECT idem_grant('application', 'shop')")
            db.execute('GRANT USAGE ON SCHEMA hand TO shop')
            db.execute('GRANT INSERT ON hand.bare TO shop')
            db.execute('GRANT USAGE ON SEQUENCE hand.bare_seq TO shop')

        def sides(events, scale=1):
            return (Side('bench', f'{NEW_KEY}INSERT INTO {table} {events};', scale,
                         before=lambda: self.db.execute('TRUNCATE idem.outbox, hand.bare'))
                    for table in ('idem.outbox', 'hand.bare'))

        with self.stopped():
            self.compare('INSERT of an event and commit, against the same table bare', *sides(EVENT), 0.909)
            with fsync_off():
                self.compare('the same, fsync off', *sides(EVENT), None)
            self.compare('INSERT of 1,000 events, against the same table bare', *sides(MANY_EVENTS, 1000), None)
            self.db.execute('TRUNCATE idem.outbox')


FIGURES = ['drain_backlog', 'latency', 'debezium', 'snapshot', 'held_key', 'leader', 'limit', 'growth',
           'payloads', 'compression', 'idle', 'stalled', 'insert']
FULL_ONLY = ['held_key', 'leader', 'limit', 'growth', 'compression', 'stalled']

if __name__ == '__main__':
    sys.exit(figures.main(Relay, FIGURES, FULL_ONLY))
