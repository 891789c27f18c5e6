#!/usr/bin/python3
"""The hash of canonical JSON against what one would use without it.

test/bench/run starts the server, sets PGHOST, and runs this with the Rust
program of test/hash/peers.  Both sides of a figure take turns, and what is
measured is the processor time of the process that does the work, so that what
else the machine does falls on both, and waiting on neither; the figure is the
median of the rounds' ratios.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg

ROUND = 0.03                            # seconds of one side in one turn
RUST_DEPTH = 120                        # serde_json refuses more than 127 levels

# What growth by a factor of 1,000 may do to the cost of a byte.  It is more than
# caches hold, and sorting millions of names is not quite linear.
GROWTH = 0.33

HASH = 'idem_hash(body)'
DIGEST = "digest(body::text, 'sha256')"

# So many hashes of one body.  It is in memory, as a parameter of a statement is;
# OFFSET 0 keeps the planner from hashing a constant once.
REPEAT = """
CREATE FUNCTION {name}(given {kind}, repeats int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM count({expression}) FROM (SELECT given AS body OFFSET 0) AS one, generate_series(1, repeats);
END
$$;
"""


class Failed(Exception):
    """A measurement did not come about."""


def say(text):
    print(text, file=sys.stderr, flush=True)


#
# Bodies
#

class Bodies:
    """JSON texts as an API gets them: names, amounts, ids, some escapes, some white space."""

    WORDS = ('payment', 'course', 'seat', 'invoice', 'learner', 'Bengaluru', 'caf\u00e9', 'M\u00fcnchen', 'receipt', 'quarterly')

    def __init__(self, seed):
        self.random = random.Random(seed)

    def words(self, count):
        return ' '.join(self.random.choice(self.WORDS) for _ in range(count))

    def hex(self, digits):
        return f'{self.random.getrandbits(4 * digits):0{digits}x}'

    def amount(self):
        return Number(f'{self.random.randrange(10 ** 6)}.{self.random.randrange(100):02d}')

    def line(self):
        return {'sku': self.hex(10), 'description': self.words(3), 'quantity': self.random.randrange(1, 20),
                'price': self.amount(), 'taxable': self.random.random() < 0.5, 'discount': None}

    def order(self, lines):
        return {'customer_id': self.hex(16), 'currency': 'INR', 'amount': self.amount(), 'method': 'card',
                'card': {'network': 'visa', 'last4': '4242', 'exp_month': 7, 'exp_year': 2031},
                'note': self.words(8), 'metadata': {'order': self.hex(12), 'source': 'web "shop"\n'},
                'capture': True, 'lines': [self.line() for _ in range(lines)]}

    def of_size(self, size):
        """An order of about so many bytes."""
        empty, line = len(text_of(self.order(0))), len(text_of(self.line())) + 2
        return text_of(self.order(max(0, round((size - empty) / line))))

    def numbers(self, size):
        """Amounts, measurements, ids and coordinates."""
        numbers = []
        length = 0
        while length < size:
            kind = self.random.random()
            if kind < 0.4:
                number = self.amount()
            elif kind < 0.6:
                number = self.random.randrange(1 << 40)
            elif kind < 0.8:
                number = Number(f'{self.random.random() * 180 - 90:.6f}')
            else:
                number = Number(f'{self.random.randrange(1, 10 ** 12)}e{self.random.randrange(-9, 9)}')
            numbers.append(number)
            length += len(str(number)) + 1
        return text_of(numbers)

    def nested(self, depth):
        value = 1
        for level in range(depth):
            value = {'level': level, 'next': value, 'also': True} if level % 2 else [value, self.hex(6)]
        return text_of(value)

    def pretty(self, size):
        """With white space and escapes, as some clients write."""
        return json.dumps(json.loads(self.of_size(size * 2 // 3), parse_float=Number), indent=2)

    def escapes(self, size):
        """Strings that are mostly escapes."""
        return json.dumps([''.join(self.random.choice('\u0939\u093f\u00e9\n"\\a') for _ in range(40)) for _ in range(size // 180)])

    def flat(self, size):
        """One object with many members."""
        names = {self.random.getrandbits(48) for _ in range(size // 20)}
        return '{' + ', '.join(f'"{name:012x}": {name % 1000}' for name in names) + '}'


class Number(float):
    """A number with the spelling that it has here."""

    def __new__(cls, text):
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self):
        return self.text

    __str__ = __repr__


def text_of(value):
    return json.dumps(value, ensure_ascii=False)


#
# Sides
#

def processor_time(pid):
    """Of another process, in seconds; clock_getcpuclockid(3) counts like this."""
    return time.clock_gettime(~pid << 3 | 2)


class Side:
    """Does so many hashes of one body in the process "pid"."""

    def seconds(self, repeats):
        """What they take, without what it takes to ask for none."""
        begin = processor_time(self.pid)
        self.hash(0)
        middle = processor_time(self.pid)
        self.hash(repeats)
        return processor_time(self.pid) - middle - (middle - begin)


class Server:
    def __init__(self):
        self.connection = psycopg.connect(f'host={os.environ["PGHOST"]} user=postgres dbname=postgres', autocommit=True)
        for setting in 'client_min_messages = warning', 'jit = off', 'max_parallel_workers_per_gather = 0', "work_mem = '1GB'":
            self.connection.execute(f'SET {setting}')
        self.connection.execute('CREATE EXTENSION IF NOT EXISTS idem CASCADE')
        self.connection.execute('CREATE TABLE body (name text PRIMARY KEY, body text)')
        self.functions = {}

    def keep(self, name, text):
        self.connection.execute('INSERT INTO body VALUES (%s, %s)', (name, text))

    def value(self, name, expression):
        return self.connection.execute(f'SELECT {expression} FROM body WHERE name = %s', (name,)).fetchone()[0]


    def function(self, kind, expression):
        """The name of a function that computes an expression again and again."""
        if (kind, expression) not in self.functions:
            name = f'repeat_{len(self.functions)}'
            self.connection.execute(REPEAT.format(name=name, kind=kind, expression=expression))
            self.functions[kind, expression] = name
        return self.functions[kind, expression]


class InServer(Side):
    """An expression over a body of type text or jsonb."""

    def __init__(self, server, name, kind, expression):
        body = {'text': "body || ''", 'jsonb': 'body::jsonb'}[kind]
        self.server, self.name = server, name
        self.pid = server.connection.info.backend_pid
        self.sql = f'SELECT {server.function(kind, expression)}({body}, %s) FROM body WHERE name = %s'

    def hash(self, repeats):
        self.server.connection.execute(self.sql, (repeats, self.name))


class Rust:
    """serde_json_canonicalizer and sha2: parse the text, canonicalize it, hash that."""

    def __init__(self, program):
        self.process = subprocess.Popen([program, 'hash'], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def hash(self, path, repeats):
        self.process.stdin.write(f'{repeats} {path}\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failed('the Rust program gave up')
        return bytes.fromhex(answer)


class InRust(Side):
    def __init__(self, rust, path):
        self.rust, self.path, self.pid = rust, path, rust.process.pid

    def hash(self, repeats):
        self.rust.hash(self.path, repeats)


def repeats_for(side, seconds):
    """How many hashes take about so long; twice that long is warming up."""
    repeats = 1
    while True:
        taken = max(side.seconds(repeats), 0)
        if taken >= seconds / 2:
            return max(1, round(repeats * seconds / taken))
        repeats *= 4


class Bench:
    def __init__(self, quick, rust):
        self.rounds = 11 if quick else 41
        self.largest = 10_000_000 if quick else 100_000_000
        self.server, self.rust = Server(), Rust(rust)
        self.folder = tempfile.TemporaryDirectory(dir=os.environ['PGHOST'])
        self.figures = []

    def figure(self, name, ours, baseline, ratio, goal):
        figure = {'name': name, 'ours': round(ours, 3), 'baseline': round(baseline, 3), 'ratio': round(ratio, 3), 'goal': goal}
        print(json.dumps(figure), flush=True)
        self.figures.append(figure)

    def compare(self, name, ours, baseline, goal):
        """Thousands of hashes a second, by turns in changing order."""
        repeats = {side: repeats_for(side, ROUND) for side in (ours, baseline)}
        rounds = []
        for number in range(self.rounds):
            speeds = {}
            for side in (ours, baseline) if number % 2 else (baseline, ours):
                speeds[side] = repeats[side] / side.seconds(repeats[side]) / 1000
            rounds.append((speeds[ours], speeds[baseline]))
        ratios = sorted(a / b for a, b in rounds)
        quarter = len(ratios) // 4
        say(f'{name}: half of {len(rounds)} ratios are from {ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}')
        self.figure(name, *(statistics.median(column) for column in zip(*rounds)), statistics.median(ratios), goal)

    def bodies(self):
        bodies = Bodies(8785)
        return {'350 bytes': bodies.of_size(350), '4 KB': bodies.of_size(4_000), '100 KB': bodies.of_size(100_000),
                'numbers, 4 KB': bodies.numbers(4_000), 'numbers, 100 KB': bodies.numbers(100_000),
                f'{RUST_DEPTH} levels': bodies.nested(RUST_DEPTH), 'one wide object, 100 KB': bodies.flat(100_000),
                'indented, 100 KB': bodies.pretty(100_000), 'escapes, 100 KB': bodies.escapes(100_000)}

    def keep(self):
        """The bodies in a table and, for the Rust program, in files."""
        for name, text in self.bodies().items():
            self.server.keep(name, text)
            with open(self.path(name), 'w') as file:
                file.write(text)
            say(f'{name}: {len(text.encode()):,} bytes')

    def path(self, name):
        return os.path.join(self.folder.name, name.replace(' ', '-'))

    def jsonb(self):
        for name in self.bodies():
            if name.startswith('indented'):
                continue                # the same jsonb as without
            if not self.server.value(name, "idem_hash(body::jsonb) = digest(idem_canonical(body::jsonb), 'sha256')"):
                raise Failed(f'{name}: the hash is wrong')
            goal = 1.3 if name in ('350 bytes', '4 KB', '100 KB') else 1
            self.compare(f'jsonb, {name}, against digest(body::text)', InServer(self.server, name, 'jsonb', HASH),
                         InServer(self.server, name, 'jsonb', DIGEST), goal)

    def text(self):
        for name in self.bodies():
            if self.rust.hash(self.path(name), 1) != self.server.value(name, HASH):
                raise Failed(f'{name}: serde_json_canonicalizer has another hash')
            self.compare(f'text, {name}, against serde_json_canonicalizer', InServer(self.server, name, 'text', HASH),
                         InRust(self.rust, self.path(name)), 1)

    def linear(self):
        """Nanoseconds a byte of the largest text against those of a thousandth of it."""
        bodies = Bodies(1)
        for shape, make in ('array of objects', lambda size: f'[{",".join([bodies.of_size(1000)] * (size // 1000))}]'), ('one wide object', bodies.flat):
            sizes = [size for size in (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000) if size <= self.largest]
            for size in sizes:
                self.server.keep(f'{shape}, {size}', make(size))
            for kind in 'text', 'jsonb':
                costs = {size: self.cost(f'{shape}, {size}', kind) for size in sizes}
                say(f'{kind}, {shape}: ' + ', '.join(f'{size:,} bytes {cost:.2f} ns/byte' for size, cost in costs.items()))
                small, large = costs[self.largest // 1000], costs[self.largest]
                self.figure(f'{kind}, {shape}: ns/byte of {self.largest // 1_000_000} MB, against {self.largest // 1_000_000} KB',
                            large, small, small / large, GROWTH)

    def cost(self, name, kind):
        side = InServer(self.server, name, kind, HASH)
        repeats = repeats_for(side, ROUND)
        length = self.server.value(name, 'octet_length(body)')
        rounds = 5 if length < 5_000_000 else 3
        return statistics.median(side.seconds(repeats) for _ in range(rounds)) / repeats / length * 1e9

    def exponents(self):
        """1,000 copies of a number that would be 131 MB written out."""
        self.server.keep('exponents', '[' + ','.join(['1e131071'] * 1000) + ']')
        for kind in 'jsonb', 'text':
            side = InServer(self.server, 'exponents', kind, HASH)
            repeats = repeats_for(side, ROUND)
            took = statistics.median(side.seconds(repeats) for _ in range(self.rounds)) / repeats * 1000
            self.figure(f'{kind}, ms for 1,000 copies of 1e131071, against one', took, 1, 1 / took, 1)


def table(figures):
    say('')
    width = max(len(figure['name']) for figure in figures)
    say(f'{"":{width}}  {"idem":>10}  {"baseline":>10}  {"ratio":>6}  {"goal":>6}')
    for figure in figures:
        goal = figure['goal']
        verdict = '' if goal is None else 'met' if figure['ratio'] >= goal else 'MISSED'
        say(f'{figure["name"]:{width}}  {figure["ours"]:10,.2f}  {figure["baseline"]:10,.2f}  '
            f'{figure["ratio"]:6.2f}  {"" if goal is None else goal:>6}  {verdict}')


def main():
    started = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--rust', required=True, help='the program that test/hash/peers/install built')
    parser.add_argument('figures', nargs='*')
    arguments = parser.parse_args()
    known = ['jsonb', 'text', 'linear', 'exponents']
    for name in arguments.figures:
        if name not in known:
            parser.error(f'there is no figure {name}; there are {", ".join(known)}')

    bench = Bench(arguments.quick, arguments.rust)
    bench.keep()
    failed = 0
    for name in arguments.figures or known:
        try:
            getattr(bench, name)()
        except Failed as error:
            say(f'{name}: {error}')
            failed = 1
    if bench.figures:
        table(bench.figures)
    say(f'{time.monotonic() - started:.0f} s')
    sys.exit(failed)


if __name__ == '__main__':
    main()
