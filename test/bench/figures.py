"""What the benchmarks share: statements, figures, and how they are printed."""

import argparse
import json
import statistics
import subprocess
import sys
import time


PATIENCE = 120


class Failed(Exception):
    """A measurement did not come about."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def psql(database, sql, *options):
    """Runs statements as the superuser; the output, unaligned."""
    command = ['psql', '-X', '-q', '-A', '-t', '-v', 'ON_ERROR_STOP=1', '-d', database, *options]
    done = subprocess.run(command, input=sql, text=True, capture_output=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    return done.stdout.strip()


def plural(number, noun):
    return f'{number} {noun}' + ('' if number == 1 else 's')


def p50(values):
    return statistics.median(values)


def p99(values):
    return statistics.quantiles(values, n=100)[-1]


def wait_for(what, there, patience=PATIENCE, pause=0.01):
    """Polls with a deadline; gives what it waited for.  Nothing else sleeps."""
    deadline = time.monotonic() + patience
    while True:
        seen = there()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise Failed(f'{what} did not come about')
        time.sleep(pause)


class Bench:
    """Collects figures: a line of JSON for each, and a table at the end."""

    def __init__(self, quick):
        self.quick = quick
        self.figures = []

    def prepare(self):
        """Before the first figure."""

    def clean_up(self):
        """After the last one."""

    def figure(self, name, ours, baseline, ratio, goal):
        figure = {'name': name, 'ours': round(ours, 3), 'baseline': round(baseline, 3),
                  'ratio': round(ratio, 3), 'goal': goal}
        print(json.dumps(figure), flush=True)
        self.figures.append(figure)

    def table(self):
        if not self.figures:
            return
        say('')
        width = max(len(figure['name']) for figure in self.figures)
        say(f'{"":{width}}  {"idem":>10}  {"baseline":>10}  {"ratio":>6}  {"goal":>6}')
        for figure in self.figures:
            goal = figure['goal']
            verdict = '' if goal is None else 'met' if figure['ratio'] >= goal else 'MISSED'
            say(f'{figure["name"]:{width}}  {figure["ours"]:10,.1f}  {figure["baseline"]:10,.1f}  '
                f'{figure["ratio"]:6.2f}  {"" if goal is None else goal:>6}  {verdict}')

    def run(self, names):
        """The figures of these names; 1 when one failed."""
        failed = 0
        try:
            self.prepare()
            for name in names:
                try:
                    getattr(self, name)()
                except Failed as error:
                    say(f'{name}: {error}')
                    failed = 1
        finally:
            self.clean_up()
        return failed


def main(bench_class, known, full_only=()):
    """Measures what the command line names of those known, or all of it; what takes
    long is left out of a quick run that doesn't name it."""
    started = time.monotonic()
    parser = argparse.ArgumentParser()
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('figures', nargs='*')
    arguments = parser.parse_args()
    for name in arguments.figures:
        if name not in known:
            parser.error(f'there is no figure {name}; there are {", ".join(known)}')
    bench = bench_class(arguments.quick)
    failed = bench.run(arguments.figures or [name for name in known
                                             if not (arguments.quick and name in full_only)])
    bench.table()
    say(f'{time.monotonic() - started:.0f} s')
    return failed
