"""Histories: what some sessions do, statement by statement, to one record.

A step is a statement, or several joined by " + " that are sent as one:

    begin L         opens a transaction of level RC, RR or SER
    snap L          the same, and a query that takes its snapshot
    claim, claim other, claim call, stale, lookup, sweep
    complete, yield, unknown, before, resolve
    savepoint, rollback to, commit, rollback
    prepare, commit prepared, rollback prepared

The record's owner at the start is the first session.
"""

import dataclasses
import itertools

LEVELS = ('RC', 'RR', 'SER')


@dataclasses.dataclass
class History:
    name: str
    start: str              # the record: see STARTS in interleave
    sessions: tuple         # of lists of steps


def transaction(level, *calls, end='commit'):
    """Calls in a transaction.  Under READ COMMITTED nothing happens at its begin,
    so that this is no step of its own; otherwise the snapshot is."""
    if level == 'RC':
        return [f'begin RC + {calls[0]}', *calls[1:], end]
    return [f'snap {level}', *calls, end]


def levels(*sessions):
    """Level by level, what sessions do: each a function of its level."""
    for chosen in itertools.product(LEVELS, repeat=len(sessions)):
        yield ' '.join(chosen), tuple(session(level) for session, level in zip(sessions, chosen))


def first_claims():
    for ends in itertools.product(('commit', 'rollback'), repeat=2):
        for name, sessions in levels(*(lambda level, end=end: transaction(level, 'claim', end=end) for end in ends)):
            yield History(f'two first claims {name} {" ".join(ends)}', 'none', sessions)
    for ends in itertools.product(('commit', 'rollback'), repeat=3):
        yield History(f'three first claims {" ".join(ends)}', 'none',
                      tuple(transaction('RC', 'claim', end=end) for end in ends))


# What a claim meets: (record at the start, what its first session does).
MEETS = (
    ('alive', 'complete'), ('alive', 'yield'), ('alive', 'unknown'), ('alive', 'before'),
    ('over', 'complete'), ('over', 'claim'), ('over', 'stale'), ('over', 'yield'), ('over', 'before'),
    ('over, called', 'complete'), ('over, called', 'claim'), ('over, called', 'stale'),
    ('expired', 'sweep'), ('expired', 'claim'),
    ('unknown', 'complete'), ('unknown', 'resolve'),
    ('completed', 'complete'),
)


def claim_meets():
    for start, call in MEETS:
        for end in ('commit', 'rollback'):
            for name, sessions in levels(lambda level: transaction(level, call, end=end),
                                         lambda level: transaction(level, 'claim')):
                if end == 'rollback' and name.split()[0] != 'RC':
                    continue            # what is rolled back had no snapshot that matters
                yield History(f'{start}: claim and {call} {name} {end}', start, sessions)


def owners_meet():
    """Two that wait for the row, and a claim that must not."""
    for start, first, second in (
            ('over', 'claim', 'complete'), ('alive', 'complete', 'yield'), ('alive', 'yield', 'complete'),
            ('alive', 'unknown', 'complete'), ('unknown', 'resolve', 'complete'), ('over, called', 'claim', 'complete')):
        for name, sessions in levels(lambda level: transaction(level, first), lambda level: transaction(level, second)):
            yield History(f'{start}: {first} and {second} {name}', start, sessions)
    for end in ('commit', 'rollback'):
        yield History(f'a zombie completes, is taken over, is asked, {end}', 'over',
                      (transaction('RC', 'complete'), transaction('RC', 'claim', end=end), ['claim', 'claim']))


def in_between():
    """A snapshot or a plan is older than what others commit meanwhile."""
    for level in ('RR', 'SER'):
        yield History(f'claimed and completed since the snapshot {level}', 'none',
                      (transaction(level, 'claim'), ['claim', 'begin RC + complete', 'commit']))
        yield History(f'claimed and completed since the snapshot, prepared {level}', 'none',
                      (transaction(level, 'claim'), ['claim', 'begin RC + complete', 'prepare', 'commit prepared']))
        yield History(f'claimed and yielded since the snapshot {level}', 'none',
                      (transaction(level, 'claim'), ['claim', 'yield', 'claim']))
        yield History(f'swept and claimed since the snapshot {level}', 'expired',
                      (transaction(level, 'claim'), ['sweep', 'begin RC + claim', 'commit']))
    yield History('a take-over, and a completion in between', 'over',
                  (transaction('RC', 'complete'), transaction('RC', 'claim'), ['claim', 'claim']))
    yield History('sweep and renewal', 'expired', (transaction('RC', 'claim'), transaction('RC', 'sweep')))


def inside():
    """Savepoints, and claims that meet themselves."""
    for end in ('commit', 'rollback'):
        for level in LEVELS:
            begin = 'begin RC + savepoint + claim' if level == 'RC' else f'snap {level} + savepoint + claim'
            yield History(f'a claim rolled back to a savepoint {level} {end}', 'none',
                          ([begin, 'rollback to', 'complete', end], ['claim', 'complete']))
            yield History(f'a take-over rolled back to a savepoint {level} {end}', 'over',
                          ([begin, 'rollback to', 'claim', end], ['claim', 'complete']))
            yield History(f'a claim, then one rolled back {level} {end}', 'none',
                          (transaction(level, 'claim', 'savepoint + claim', 'rollback to + complete', end=end), ['claim']))
            yield History(f'a claim twice {level} {end}', 'none',
                          (transaction(level, 'claim', 'claim', end=end), ['claim', 'claim']))
            yield History(f'claim and completion in one {level} {end}', 'none',
                          (transaction(level, 'claim', 'complete', end=end), ['claim', 'claim']))


def prepared():
    for start, call in (('none', 'claim'), ('over', 'claim'), ('over, called', 'claim'), ('alive', 'complete'),
                        ('alive', 'yield'), ('expired', 'sweep'), ('unknown', 'resolve')):
        for end in ('commit prepared', 'rollback prepared'):
            for level in LEVELS:
                yield History(f'prepared {call} of {start} {end} {level}', start,
                              ([f'begin RC + {call}', 'prepare', end], transaction(level, 'claim')))
        yield History(f'prepared {call} of {start}, many ask', start,
                      ([f'begin RC + {call}', 'prepare', 'commit prepared'], ['claim', 'claim other'], ['sweep', 'stale']))
        yield History(f'prepared {call} of {start}, many look', start,
                      ([f'begin RC + {call}', 'prepare', 'rollback prepared'], ['lookup', 'complete'], ['lookup', 'claim call']))


# Calls for histories by lot: each is a statement of its own, or those before the
# last are in a transaction.
CALLS = ('claim', 'claim', 'claim call', 'claim other', 'complete', 'complete', 'yield', 'unknown', 'before',
         'resolve', 'stale', 'sweep', 'lookup')
STARTS = ('none', 'alive', 'over', 'over, called', 'expired', 'unknown', 'completed')


def all_of(count, length, calls=('claim', 'complete', 'yield')):
    """All histories of some sessions with some of these calls each: every one by
    itself, or in a transaction that ends with the last."""
    plain = [list(chosen) for chosen in itertools.product(calls, repeat=length)]
    grouped = [transaction('RC', *chosen, end=end) for chosen in itertools.product(calls, repeat=length - 1)
               for end in ('commit', 'rollback')]
    for start in STARTS:
        # The first session owns the record; the others are alike, so that their order is none.
        for others in itertools.combinations_with_replacement(plain + grouped, count - 1):
            for first in plain + grouped:
                yield History(f'{count} × {length} from {start}', start, (first, *others))


def named():
    """Every race that the design names."""
    return [*first_claims(), *claim_meets(), *owners_meet(), *in_between(), *inside(), *prepared()]


def by_lot(seeded):
    """One of 2 sessions × 3 calls or 3 × 2, with all kinds of calls and levels."""
    count, length = seeded.choice(((2, 3), (3, 2)))
    sessions = []
    for _ in range(count):
        calls = [seeded.choice(CALLS) for _ in range(length)]
        if seeded.random() < 0.6:
            calls = transaction(seeded.choice(LEVELS), *calls[:-1], end=seeded.choice(('commit', 'commit', 'rollback')))
        sessions.append(calls)
    start = seeded.choice(STARTS)
    return History(f'{count} × {length} from {start}', start, tuple(sessions))
