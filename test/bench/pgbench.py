"""Scripts of pgbench, and how two of them are compared."""

import contextlib
import os
import re
import statistics
import subprocess
import tempfile

import figures
from figures import Failed, psql, say


class Load:
    """pgbench with scripts of ours, as the ordinary user, from now until stopped.
    Of several, each transaction draws one."""

    def __init__(self, database, scripts, clients=1, seconds=None, transactions=None, rate=None, log=None):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ['PGHOST'])
        command = ['pgbench', '-n', '-U', 'shop', '-M', 'prepared',
                   '-c', str(clients), '-j', str(min(clients, os.cpu_count()))]
        for number, script in enumerate(scripts):
            path = os.path.join(self.folder.name, f'script{number}')
            with open(path, 'w') as file:
                file.write(script)
            command += ['-f', path]
        if seconds:
            command += ['-T', str(seconds)]
        if transactions:
            command += ['-t', str(transactions)]
        if rate:
            command += ['-R', str(rate)]
        if log:
            command += ['-l', '--log-prefix', os.path.join(self.folder.name, 'log')]
        self.process = subprocess.Popen(command + [database], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self):
        """Waits for the end; transactions per second."""
        output, errors = self.process.communicate()
        speed = re.search(r'^tps = ([\d.]+) \(without', output, re.M)
        failed = re.search(r'^number of failed transactions: (\d+)', output, re.M)
        if self.process.returncode != 0 or not speed or not failed or failed[1] != '0':
            raise Failed(f'pgbench: {output}{errors}')
        return float(speed[1])

    def stop(self):
        """Ends it at once; it must have been at work until now."""
        early = self.process.poll() is not None
        self.process.terminate()
        output, errors = self.process.communicate()
        if early:
            raise Failed(f'pgbench: {output}{errors}')

    def latencies(self, script=0):
        """Of each transaction of a script, in milliseconds."""
        times = []
        for name in os.listdir(self.folder.name):
            if name.startswith('log'):
                with open(os.path.join(self.folder.name, name)) as file:
                    lines = (line.split() for line in file)
                    times += [int(line[2]) / 1000 for line in lines if line[3] == str(script)]
        return times


class Side:
    """One of the two that are compared: a script in a database, how many of what
    is counted one run of it makes, and what goes before each of its rounds."""

    def __init__(self, database, script, scale=1, before=None):
        self.database, self.script, self.scale, self.before = database, script, scale, before

    def round(self, clients, seconds):
        if self.before:
            self.before()
        return self.scale * Load(self.database, [self.script], clients, seconds=seconds).finish()

    def warm_up(self, clients):
        Load(self.database, [self.script], clients, transactions=max(100 // self.scale, 1)).finish()


class Turns(figures.Bench):
    """Compares two sides, in self.rounds rounds of self.seconds."""

    def compare(self, name, ours, baseline, goal, clients=1):
        """Rounds of both sides, by turns or, where that can be, mixed."""
        pairs = []
        mixed = clients == 1 and ours.script != baseline.script and ours.scale == baseline.scale == 1
        ours.warm_up(clients)
        baseline.warm_up(clients)
        for number in range(1, self.rounds + 1):
            if mixed:
                pair = self.mixed_round(ours, baseline)
            else:
                order = (ours, baseline) if number % 2 else (baseline, ours)
                speeds = {side: side.round(clients, self.seconds) for side in order}
                pair = speeds[ours], speeds[baseline]
            pairs.append(pair)
            say(f'{name}: round {number} of {self.rounds}: {pair[0]:.0f} against {pair[1]:.0f} a second')
        self.figure(name, *(statistics.median(column) for column in zip(*pairs)),
                    statistics.median(a / b for a, b in pairs), goal)

    def mixed_round(self, ours, baseline):
        """Transactions of both sides, in turns that are drawn by lot."""
        load = Load(ours.database, [ours.script, baseline.script], seconds=2 * self.seconds, log=True)
        load.finish()
        return [1000 / middle_mean(load.latencies(script)) for script in (0, 1)]


def middle_mean(values):
    """Without the fastest and the slowest quarter: a stall is nobody's merit."""
    if len(values) < 100:
        raise Failed(f'{len(values)} transactions in a round are too few to compare')
    values = sorted(values)
    return statistics.fmean(values[len(values) // 4:-(len(values) // 4)])


@contextlib.contextmanager
def fsync_off():
    """For a while: shows what the processor costs."""
    psql('postgres', 'ALTER SYSTEM SET fsync = off')
    psql('postgres', 'SELECT pg_reload_conf()')
    try:
        yield
    finally:
        psql('postgres', 'ALTER SYSTEM RESET fsync')
        psql('postgres', 'SELECT pg_reload_conf()')
