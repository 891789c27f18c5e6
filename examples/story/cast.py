"""All parts of the story: how they start, how they stop, how they stay."""

import os
import pathlib
import shlex
import subprocess
import uuid

from clients import AcquirerControl, Background, Learner
from parts import EXAMPLES, PATIENCE, Cluster, Kafka, MockBroker, OthersKafka, Programs, TopicReader

CALL_TIMEOUT = 3  # seconds; short, so that calls without an answer are given up soon


class Cast:
    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(options.folder)
        self.programs = Programs(self.folder, options.keep)
        self.broker = None
        self.group = f'enrollment-{uuid.uuid4()}'  # others' groups may have the same name

    def start(self):
        if self.options.kafka_jars:
            self.broker = Kafka(self.programs, self.options.kafka_jars)
        elif self.options.brokers:
            self.broker = OthersKafka(self.options.brokers)
        else:
            self.broker = MockBroker(self.programs, self.options.broker)
        self.cluster = Cluster(self.programs, self.options.bin)
        # A broker and a consumer group need some seconds to start; use them.
        consumer = Background(self.start_consumer)
        self.start_cluster()
        self.start_services()
        consumer.result()

    def start_consumer(self):
        self.broker.wait_until_ready()
        self.enrollment = self.service('enrollment', '--brokers', self.broker.address, '--group', self.group,
                                       '--database', self.cluster.dsn('enrollment', 'enrollment_service'))
        self.topic = TopicReader(self.broker.address)

    def start_cluster(self):
        self.cluster.create(self.broker.address)
        self.cluster.start()
        self.cluster.load('payments', EXAMPLES / 'payments.sql')
        self.cluster.load('enrollment', EXAMPLES / 'enrollment.sql')

    def start_services(self):
        acquirer = self.service('acquirer')
        self.acquirer = AcquirerControl(acquirer.first_line('http://'))
        self.payments = self.payment_service('payments')
        self.payments_address = self.payments.first_line('http://')

    def payment_service(self, log, *arguments):
        database = self.cluster.dsn('payments', 'payments_service')
        return self.service('payments', '--database', database, '--acquirer', self.acquirer.address,
                            '--call-timeout', CALL_TIMEOUT, *arguments, log=log)

    def service(self, name, *arguments, log=None):
        return self.programs.start(log or name, [EXAMPLES / name, *arguments])

    def resolve(self, *arguments):
        """An operator's command; returns its status and what it printed."""
        command = [EXAMPLES / 'resolve', '--database', self.cluster.dsn('payments', 'payments_operator'),
                   *arguments]
        done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE, env={**os.environ, 'PYTHONDONTWRITEBYTECODE': '1'})
        return done.returncode, (done.stdout + done.stderr).strip()

    def stop(self):
        self.programs.stop()
        if self.broker:
            self.broker.clean_up()

    def learner(self, name, payments_address=None):
        return Learner(payments_address or self.payments_address, name)

    def requests(self):
        """How many requests for payments the services have answered, by their own logs."""
        return sum('"POST /payments ' in text for log in self.folder.glob('payments*.log')
                   for text in log.read_text().splitlines())

    def log_tails(self, lines=12):
        """The end of every log, as (name, lines); what says most comes last."""
        logs = sorted(self.folder.glob('*.log'), key=lambda log: log.stat().st_mtime)
        return [(log.name, log.read_text(errors='replace').splitlines()[-lines:]) for log in logs
                if log.stat().st_size > 0]

    def write_stop_script(self):
        """For --keep: a script that stops what stays, and removes the folder."""
        stops = '\n'.join(f'stop {program.pid} {program.stop_signal.name[3:]}'
                          for program in reversed(self.programs.running()))
        script = self.folder / 'stop'
        script.write_text(f"""#!/bin/sh
# Stops what examples/demo --keep left running, and removes the folder.
folder={shlex.quote(str(self.folder))}

# The number of a process may be another program's by now: ours work in the folder.
is_ours() {{
	case $(readlink "/proc/$1/cwd") in
		"$folder" | "$folder"/*) true ;;
		*) false ;;
	esac
}}

stop() {{
	is_ours "$1" || return
	kill -s "$2" "$1"
	while is_ours "$1"; do sleep 0.1; done
}}

{stops}
rm -rf "$folder"
""")
        script.chmod(0o755)
        return script
