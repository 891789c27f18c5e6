"""What must hold whatever the model says, seen from the answers alone."""

from race import RUNS
from sessions import Failure


class Owners:
    """At most one owner at a time, attempts that only grow, and one answer."""

    def __init__(self, attempt, live):
        self.highest = attempt
        # (transaction, what, attempt); transactions: None for what was before
        self.log = [(None, 'won', attempt)] if live else []
        self.dead = set()
        self.committed = {None}

    def note(self, transaction, verdict, attempt):
        if verdict in RUNS:
            if attempt <= self.highest:
                raise Failure(f'attempt {attempt} comes after {self.highest}')
            self.highest = attempt
            ended = {number for by, what, number in self.log
                     if what == 'ended' and (by in self.committed or by is transaction)}
            live = [number for by, what, number in self.log
                    if what == 'won' and number not in ended and by not in self.dead]
            if live:
                raise Failure(f'attempt {attempt} runs while {live[0]} is alive')
            self.log.append((transaction, 'won', attempt))
        elif verdict in ('done', 'yielded', 'unknown', 'settled'):
            self.log.append((transaction, 'ended', attempt))
            if verdict in ('done', 'settled'):
                self.log.append((transaction, 'answered', attempt))

    def savepoint(self, transaction):
        self.log.append((transaction, 'savepoint', 0))

    def rollback_to(self, transaction):
        """Forgets what the transaction did since its savepoint; without one, all."""
        start = self.log.index((transaction, 'savepoint', 0)) + 1 if (transaction, 'savepoint', 0) in self.log else 0
        self.log[start:] = [entry for entry in self.log[start:] if entry[0] is not transaction]

    def end(self, transaction, commit):
        (self.committed.add if commit else self.dead.add)(transaction)
        answers = [number for by, what, number in self.log if what == 'answered' and by in self.committed]
        if len(answers) > 1:
            raise Failure(f'answered twice, by attempts {answers}')
