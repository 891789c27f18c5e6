"""A real Apache Kafka, and Debezium in Kafka Connect, for benchmarks.

Both are Java processes on free ports of 127.0.0.1, with their data in a folder
that the caller removes.  The kernel ends them when this process ends.
"""

import os
import signal
import socket
import subprocess

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from figures import PATIENCE, Failed, wait_for

def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for a_socket in sockets:
            a_socket.bind(('127.0.0.1', 0))
        return [a_socket.getsockname()[1] for a_socket in sockets]
    finally:
        for a_socket in sockets:
            a_socket.close()


class Java:
    """A Java program that runs until it is stopped."""

    def __init__(self, jars, log, heap, *command):
        self.log = log
        with open(log, 'ab') as output:
            self.process = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', 'java', f'-Xmx{heap}',
                 '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn',
                 '-cp', ':'.join(f'{folder}/*' for folder in jars), *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def check(self):
        if self.process.poll() is not None:
            with open(self.log) as log:
                raise Failed(f'{self.process.args[-2]} ended:\n' + ''.join(log.readlines()[-15:]))

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def memory(self):
        """Resident, in bytes."""
        return status_bytes(self.process.pid, 'VmRSS')


def status_bytes(pid, *names):
    """Sum of some lines of /proc/<pid>/status."""
    with open(f'/proc/{pid}/status') as status:
        return sum(int(line.split()[1]) * 1024 for line in status if line.split(':')[0] in names)


class Kafka:
    """A cluster of one or more nodes in KRaft mode, each broker and controller."""

    def __init__(self, folder, jars, nodes=1):
        self.folder, self.jars = folder, jars
        ports = free_ports(2 * nodes)
        self.ports, controllers = ports[:nodes], ports[nodes:]
        self.brokers = ','.join(f'127.0.0.1:{port}' for port in self.ports)
        voters = ','.join(f'{i + 1}@127.0.0.1:{port}' for i, port in enumerate(controllers))
        self.nodes = [self.start(i + 1, voters, self.ports[i], controllers[i]) for i in range(nodes)]
        self.admin = AdminClient({'bootstrap.servers': self.brokers, 'log_level': 2})
        wait_for('Kafka', self.answers)

    def start(self, node, voters, port, controller):
        home = os.path.join(self.folder, f'kafka-{node}')
        os.makedirs(home)
        properties = os.path.join(home, 'server.properties')
        factor = min(3, len(self.ports))
        with open(properties, 'w') as file:
            file.write(f'''process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=BROKER://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=BROKER://127.0.0.1:{port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={home}/data
auto.create.topics.enable=false
offsets.topic.replication.factor={factor}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={factor}
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
''')
        log = os.path.join(home, 'log')
        # any 22 letters are a cluster id
        format_storage = Java([self.jars], log, '256m', 'kafka.tools.StorageTool', 'format',
                              '-t', 'idem-bench-cluster-001', '-c', properties)
        if format_storage.process.wait() != 0:
            raise Failed(f'Kafka could not format its storage, see {log}')
        return Java([self.jars], log, '1g' if len(self.ports) == 1 else '512m', 'kafka.Kafka', properties)

    def answers(self):
        for node in self.nodes:
            node.check()
        try:
            return len(self.admin.list_topics(timeout=1).brokers) == len(self.nodes)
        except KafkaException:
            return False

    def create_topic(self, topic, partitions=1, assignment=None, **config):
        """assignment: the node of each partition, instead of a number of partitions."""
        if assignment:
            new = NewTopic(topic, num_partitions=len(assignment),
                           replica_assignment=[[node] for node in assignment], config=config)
        else:
            new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        self.admin.create_topics([new])[topic].result(PATIENCE)
        wait_for(f'topic {topic}', lambda: self.is_led(topic))

    def delete_topic(self, topic):
        self.admin.delete_topics([topic])[topic].result(PATIENCE)

    def is_led(self, topic):
        metadata = self.admin.list_topics(topic, timeout=5).topics.get(topic)
        return metadata and metadata.error is None and metadata.partitions and all(
            partition.leader >= 0 and partition.error is None for partition in metadata.partitions.values())

    def stop(self):
        for node in self.nodes:
            node.stop(signal.SIGKILL)


class Progress:
    """How many records a topic has, from now on."""

    def __init__(self, kafka, topic):
        self.consumer = Consumer({'bootstrap.servers': kafka.brokers, 'group.id': 'progress', 'log_level': 2})
        partitions = self.consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self.partitions = [TopicPartition(topic, number) for number in partitions]
        self.start = 0
        wait_for(f'a leader of each partition of {topic}', self.is_there)
        self.start = self.records()

    def is_there(self):
        try:
            self.records()
            return True
        except KafkaException:
            return False

    def records(self):
        return sum(self.of_partition(partition.partition) for partition in self.partitions) - self.start

    def of_partition(self, number):
        """Since the topic was made."""
        partition = next(p for p in self.partitions if p.partition == number)
        return self.consumer.get_watermark_offsets(partition, timeout=10)[1]

    def close(self):
        self.consumer.close()


class Debezium:
    """The outbox connector of Debezium, in a Connect worker of its own."""

    def __init__(self, folder, jars, kafka, database, table, tuned):
        """database: host, port, user and name.  Reads a table that has the columns of
        Debezium's outbox, and writes to topic outbox.event.<aggregatetype>."""
        self.name = 'tuned' if tuned else 'default'
        home = os.path.join(folder, f'debezium-{self.name}')
        os.makedirs(home)
        self.slot = f'debezium_{self.name}'
        worker = {
            'bootstrap.servers': kafka.brokers,
            'key.converter': 'org.apache.kafka.connect.storage.StringConverter',
            'value.converter': 'org.apache.kafka.connect.storage.StringConverter',
            'offset.storage.file.filename': f'{home}/offsets',
            'plugin.discovery': 'hybrid_warn',
            'connector.client.config.override.policy': 'All',
            'listeners': f'HTTP://127.0.0.1:{free_ports(1)[0]}',
        }
        connector = {
            'name': f'outbox-{self.name}',
            'connector.class': 'io.debezium.connector.postgresql.PostgresConnector',
            'tasks.max': '1',
            'plugin.name': 'pgoutput',
            'database.hostname': database['host'],
            'database.port': database['port'],
            'database.user': database['user'],
            'database.password': 'none',
            'database.dbname': database['name'],
            'topic.prefix': 'bench',
            'slot.name': self.slot,
            'publication.name': self.slot,
            'publication.autocreate.mode': 'filtered',
            'snapshot.mode': 'no_data',
            'table.include.list': table,
            'tombstones.on.delete': 'false',
            'transforms': 'outbox',
            'transforms.outbox.type': 'io.debezium.transforms.outbox.EventRouter',
        }
        if tuned:
            connector.update({'max.batch.size': '8192', 'max.queue.size': '32768',
                              'poll.interval.ms': '10', 'producer.override.linger.ms': '5'})
        files = []
        for name, settings in ('worker', worker), ('connector', connector):
            files.append(os.path.join(home, f'{name}.properties'))
            with open(files[-1], 'w') as file:
                file.writelines(f'{key}={value}\n' for key, value in settings.items())
        self.java = Java(jars, os.path.join(home, 'log'), '1g',
                         'org.apache.kafka.connect.cli.ConnectStandalone', *files)

    def freeze(self):
        self.java.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.java.process.send_signal(signal.SIGCONT)
