"""One record under several transactions: what each statement may answer.

A small multi-version store with one row.  What a transaction does to the record
as it sees it comes from table.py; this adds what transactions add:

- A claim, a sweep and a look-up never wait.  While another transaction has an
  uncommitted change, a claim answers from the committed record, and where it
  would have to write, IN_PROGRESS.
- The functions of the owner wait for the row, and then answer from the record
  as it is by then.  Whoever waited for a row that was deleted may also hear that
  there is none, although another was inserted with the deletion.
- READ COMMITTED gives exactly one answer.  REPEATABLE READ and SERIALIZABLE may
  give 40001 where something was committed after their snapshot, SERIALIZABLE
  wherever another transaction was at work beside it.  Nothing else may.
"""

import dataclasses

import table
from records import DEFAULTS

WRITES = ('STARTED', 'RESUMED', 'BECOMES', 'done', 'unknown', 'call', 'yielded', 'settled', 'deleted')
RUNS = ('STARTED', 'RESUMED')
CLAIMS = ('claim', 'other hash')
# Verdicts of the owner's functions that write nothing, and hold the row all the same.
LOCKS = ('no-op', 'repeated')
# Events that take the row's lock, waiting for it; the first with an attempt.
OWNERS = ('complete', 'yield', 'mark_unknown', 'before_call')
WAITS = (*OWNERS, 'completed', 'not_applied')


@dataclasses.dataclass(frozen=True)
class Record:
    """The facts of the table that a history can change, and whose it is."""
    state: str = 'IN_PROGRESS'
    request: str = 'claim'              # the event that claims with its hash
    lease: str = 'alive'
    call: str = 'none'
    yielded: bool = False
    expired: bool = False
    grace: str = 'over'
    verdict: str = None
    attempt: int = 0
    answered_by: str = None             # session that completed it
    claimed_in: object = None           # transaction
    called_in: object = None            # transaction
    row: object = None                  # a new one for a record inserted anew


class Transaction:
    def __init__(self, level, model):
        self.level = level
        self.snapshot = None if level == 'RC' else model.version
        self.own = None                 # the record as it has changed it
        self.savepoint = None           # (whether it holds the row, own) then
        self.failed = False
        self.beside = False             # another transaction was at work meanwhile


class Model:
    def __init__(self, record):
        self.versions = [record]
        self.holder = None              # the transaction with an uncommitted change
        self.open = set()

    @property
    def version(self):
        return len(self.versions) - 1

    @property
    def committed(self):
        return self.versions[-1]

    # Transactions

    def begin(self, level):
        transaction = Transaction(level, self)
        transaction.beside = bool(self.open)
        for other in self.open:
            other.beside = True
        self.open.add(transaction)
        return transaction

    def end(self, transaction, commit):
        if self.holder is transaction:
            if commit and not transaction.failed and transaction.own is not self.committed:
                self.versions.append(transaction.own)
            self.holder = None
        self.open.discard(transaction)

    def fail(self, transaction):
        """An error inside: all since its savepoint is gone, and others need not
        wait for it."""
        self.rollback_to(transaction)
        transaction.failed = True

    def set_savepoint(self, transaction):
        transaction.savepoint = (self.holder is transaction, transaction.own)

    def rollback_to(self, transaction):
        """Back to its savepoint; without one, to its begin."""
        held, transaction.own = transaction.savepoint or (False, None)
        transaction.failed = False
        if self.holder is transaction and not held:
            self.holder = None

    # Events

    def blocked(self, transaction, event):
        """Whether the event waits: the row that it needs is held."""
        return (event in WAITS and self.holder not in (None, transaction) and not transaction.failed
                and self.seen(transaction) is not None)

    def seen(self, transaction):
        if self.holder is transaction:
            return transaction.own
        return self.committed if transaction.level == 'RC' else self.versions[transaction.snapshot]

    def says(self, record, transaction, event, session, attempt, timeout):
        """The table's verdict on a record for this event."""
        facts = dict(DEFAULTS)
        if record is not None:
            facts |= {'state': record.state, 'lease': record.lease, 'call': record.call, 'yielded': record.yielded,
                      'expired': record.expired, 'grace': record.grace, 'verdict': record.verdict,
                      'mine': record.claimed_in is transaction, 'call_here': record.called_in is transaction}
            if event in CLAIMS:
                event = 'claim' if event == record.request else 'other hash'
            elif event in OWNERS and record.attempt != attempt:
                event = 'fenced'
            elif event == 'complete' and record.state == 'COMPLETED' and record.answered_by == session:
                event = 'repeat'
        return table.verdict(facts, event, timeout)

    def allowed(self, transaction, event, session, attempt, timeout='none', waited_for=None):
        """The set of verdicts and errors that the event may answer, now that
        it does not wait; waited_for: the record whose row it has waited for."""
        if transaction.failed:
            return {'25P02'}
        arguments = (transaction, event, session, attempt, timeout)
        seen = self.says(self.seen(transaction), *arguments)
        newest = self.says(self.committed, *arguments)
        held = self.holder not in (None, transaction)
        stale = self.holder is not transaction and transaction.snapshot not in (None, self.version)
        refused = 'IN_PROGRESS' if event in CLAIMS else '-'

        if not stale:
            found = {refused if held and seen in WRITES else seen}
        else:
            found = {'40001'}
            found |= {refused if held else '40001'} if seen in WRITES else {seen}
            if newest not in WRITES:
                found.add(newest)
        if transaction.level != 'RC' and held and seen in WRITES:
            found.add('40001')
        if transaction.level == 'SER' and transaction.beside:
            found.add('40001')
        if waited_for and self.committed and waited_for.row is not self.committed.row:
            found.add('ID001')
        return found

    def may_commit(self, transaction):
        """What a commit may answer."""
        return {'done', '40001'} if transaction.level == 'SER' and transaction.beside else {'done'}

    def apply(self, transaction, event, session, verdict, attempt, timeout='none'):
        """Brings about what an event answered."""
        old = self.seen(transaction)
        if verdict in LOCKS:
            transaction.own, self.holder = old, transaction
        if verdict not in WRITES:
            return
        call = {} if timeout == 'none' else {'called_in': transaction, 'grace': 'running'}
        if call and (old is None or old.call == 'none' or verdict == 'STARTED'):
            call['call'] = 'once'
        claim = {'attempt': attempt, 'claimed_in': transaction, **call}
        change = {
            'STARTED': lambda: Record(request=event, row=old.row if old else object(), **claim),
            'RESUMED': lambda: dataclasses.replace(old, lease='alive', yielded=False, **claim),
            'BECOMES': lambda: dataclasses.replace(old, state='UNKNOWN'),
            'done': lambda: dataclasses.replace(old, state='COMPLETED', answered_by=session),
            'unknown': lambda: dataclasses.replace(old, state='UNKNOWN'),
            'call': lambda: dataclasses.replace(old, lease='alive', yielded=False, **call),
            'yielded': lambda: dataclasses.replace(old, lease='over', yielded=True),
            'settled': lambda: dataclasses.replace(old, state='COMPLETED', verdict='not_applied', answered_by=session),
            'deleted': lambda: None,
        }
        transaction.own = change[verdict]()
        self.holder = transaction
