"""What the story runs on: a throwaway cluster, a broker, and the services.

Every program is a child of ours with its own log file, and is stopped by its
own process id.
"""

import base64
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.rows import namedtuple_row

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent
TOPIC = 'payments.payment-authorized'
PARTITIONS = 3
PATIENCE = 30  # seconds that anything may take before the story gives up


GROUPS_NOT_READY = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE,
                    KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


class Failed(Exception):
    """The story can't go on, or something is not as it must be."""


def wait_for(what, probe, seconds=PATIENCE):
    """Asks the probe until it gives something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f'waited {seconds} s in vain for: {what}')
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


class Program:
    """A child process with its output in a log file."""

    def __init__(self, folder, name, command, outlive, stop_signal):
        self.name, self.log, self.stop_signal = name, folder / f'{name}.log', stop_signal
        # A child that outlives us must not end with our end of the pipe.
        # Its own session: Ctrl-C reaches us alone, and we stop things in order.
        self.process = subprocess.Popen(
            list(map(str, command)), cwd=folder, start_new_session=True,
            env={**os.environ, 'PYTHONDONTWRITEBYTECODE': '1', 'no_proxy': '127.0.0.1'},
            stdin=subprocess.DEVNULL if outlive else subprocess.PIPE,
            stdout=self.log.open('ab'), stderr=subprocess.STDOUT)
        self.pid = self.process.pid

    def check(self):
        if self.process.poll() is not None:
            raise Failed(f'{self.name} ended with status {self.process.returncode}')

    def first_line(self, prefix):
        """The first line that it printed with this prefix: its address."""
        def probe():
            self.check()
            lines = self.log.read_text(errors='replace').splitlines(keepends=True)
            return next((text.strip() for text in lines
                         if text.startswith(prefix) and text.endswith('\n')), None)
        return wait_for(f'the address of {self.name}', probe)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ends it if it runs: politely first, and then not."""
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()


class Programs:
    """All children, to be stopped together; none starts after that."""

    def __init__(self, folder, keep):
        self.folder, self.keep = folder, keep
        self.lock = threading.Lock()
        self.started = []
        self.closed = False

    def start(self, name, command, stop_signal=signal.SIGTERM):
        with self.lock:
            if self.closed:
                raise Failed('everything is being stopped')
            program = Program(self.folder, name, command, self.keep, stop_signal)
            self.started.append(program)
        return program

    def running(self):
        return [program for program in self.started if program.process.poll() is None]

    def stop(self):
        with self.lock:
            self.closed = True
        for program in reversed(self.started):
            program.stop()


class Cluster:
    """A PostgreSQL cluster of our own, reached by a socket in its folder only."""

    def __init__(self, programs, bin_folder):
        self.programs, self.folder, self.bin = programs, programs.folder, pathlib.Path(bin_folder)
        self.data = self.folder / 'data'
        self.port = free_port()

    def dsn(self, database, user='postgres'):
        return f'host={self.folder} port={self.port} user={user} dbname={database}'

    def create(self, brokers):
        initdb = subprocess.run(
            [self.bin / 'initdb', '-D', self.data, '-A', 'trust', '-U', 'postgres', '-E', 'UTF8',
             '--no-locale'],
            stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if initdb.returncode != 0:
            raise Failed(f'initdb: {initdb.stderr.strip()}')
        with (self.data / 'postgresql.conf').open('a') as conf:
            conf.write(f"""
port = {self.port}
listen_addresses = ''
unix_socket_directories = '{self.folder}'
shared_preload_libraries = 'idem'
idem.databases = 'payments'
idem.kafka_brokers = '{brokers}'
idem.lease = '2s'			# short, so that the story does not take minutes
idem.call_margin = '1s'
idem.call_grace = '1s'
""")

    def start(self):
        self.program = self.programs.start('postgres', [self.bin / 'postgres', '-D', self.data],
                                           stop_signal=signal.SIGINT)  # "fast": ends sessions
        self.wait_until_ready()

    def wait_until_ready(self):
        def probe():
            self.program.check()
            try:
                return self.query('postgres', 'SELECT true AS up')
            except psycopg.OperationalError:
                return None
        wait_for('the server to accept connections', probe)

    def connect(self, database):
        return psycopg.connect(self.dsn(database), autocommit=True, row_factory=namedtuple_row)

    def query(self, database, statement, parameters=None):
        """The rows of one statement, on a connection of its own: it may follow a crash."""
        with self.connect(database) as db:
            cursor = db.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def load(self, database, script):
        self.query('postgres', f'CREATE DATABASE {database}')
        self.query(database, script.read_text())

    def kill(self):
        """Ends the postmaster and all of its children with -9, like a power cut."""
        children = [pid for pid in running_processes() if parent_of(pid) == self.program.pid]
        self.program.kill()
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_for('the children of the server to end', lambda: not set(children) & set(running_processes()))
        return len(children)


def running_processes():
    return [int(entry.name) for entry in pathlib.Path('/proc').iterdir()
            if entry.name.isdigit() and stat_of(entry.name)[0] not in 'ZX']


def parent_of(pid):
    return int(stat_of(pid)[1])


def stat_of(pid):
    """State and parent of a process; "X", "0" when it is gone."""
    try:
        # The name of the program, in brackets, may hold blanks and brackets.
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[:2]
    except OSError:
        return 'X', '0'


class MockBroker:
    """examples/broker: librdkafka's mock cluster."""

    about = "examples/broker (librdkafka's mock cluster, in memory)"

    def __init__(self, programs, program):
        stay = ['--stay'] if programs.keep else []
        self.program = programs.start('broker', [program, *stay, f'{TOPIC}:{PARTITIONS}'])
        self.address = self.program.first_line('127.')

    def wait_until_ready(self):
        """It made its topic before it printed its address."""

    def clean_up(self):
        """It took its topic with it."""


class Kafka:
    """A real Apache Kafka: one node that is broker and controller."""

    about = 'Apache Kafka, one node'

    def __init__(self, programs, jars):
        folder, port, controller = programs.folder, free_port(), free_port()
        self.address = f'127.0.0.1:{port}'
        properties = folder / 'kafka.properties'
        properties.write_text(f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/kafka
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
""")
        java = ['java', '-Xmx512m', '-cp', f'{jars}/*']
        cluster_id = base64.urlsafe_b64encode(b'examples of idem').decode().rstrip('=')
        formatting = programs.start('kafka-format', [*java, 'kafka.tools.StorageTool', 'format',
                                                     f'--cluster-id={cluster_id}', '-c', properties])
        if formatting.process.wait() != 0:
            raise Failed('Kafka could not format its folder')
        self.program = programs.start('kafka', [*java, 'kafka.Kafka', properties])

    def wait_until_ready(self):
        admin = AdminClient({'bootstrap.servers': self.address, 'log_level': 0})

        def probe():
            self.program.check()
            try:
                return admin.list_topics(timeout=1).brokers
            except KafkaException:
                return None
        wait_for('Kafka to answer', probe, seconds=60)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE)

    def clean_up(self):
        """Its folder goes with ours."""


class OthersKafka:
    """A Kafka that somebody else runs: nothing of the story is left there."""

    about = 'a Kafka that is there already'

    def __init__(self, address):
        self.address, self.made = address, False
        self.admin = AdminClient({'bootstrap.servers': address, 'log_level': 0})

    def wait_until_ready(self):
        try:
            topics = self.admin.list_topics(timeout=10).topics
        except KafkaException:
            raise Failed(f'no Kafka answers at {self.address}') from None
        if TOPIC in topics:
            raise Failed(f'topic {TOPIC} exists there already; the story needs it for itself')
        # -1: as many replicas as the cluster is set up to make
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC].result(PATIENCE)
        self.made = True

    def clean_up(self):
        if self.made:
            self.admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE)


class TopicReader:
    """Reads the topic from its beginning, as any consumer of Kafka would."""

    def __init__(self, brokers):
        self.conf = {'bootstrap.servers': brokers, 'group.id': 'story', 'enable.auto.commit': False,
                     'enable.partition.eof': True, 'fetch.wait.max.ms': 10, 'log_level': 0}

    def records(self):
        """All records that are in the topic now."""
        consumer = Consumer(self.conf)
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        records, open_partitions, deadline = [], set(range(PARTITIONS)), time.monotonic() + PATIENCE
        while open_partitions:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                records.append(message)
            elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            elif time.monotonic() > deadline:
                raise Failed(f'waited {PATIENCE} s in vain for: the end of topic {TOPIC}')
        consumer.close()
        return sorted(records, key=lambda it: (it.timestamp()[1], it.partition(), it.offset()))

    def lag(self, group):
        """How many records of the topic a consumer group has not committed yet; None: ask again."""
        consumer = Consumer({**self.conf, 'group.id': group})
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        try:
            committed = consumer.committed(partitions, PATIENCE)
            ends = [consumer.get_watermark_offsets(partition, PATIENCE)[1] for partition in committed]
        except KafkaException as error:
            # a broker that has just started is still loading its groups
            if error.args[0].code() in GROUPS_NOT_READY:
                return None
            raise
        finally:
            consumer.close()
        return sum(end - max(partition.offset, 0) for partition, end in zip(committed, ends))
