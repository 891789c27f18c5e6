"""One order of the statements of a history, statement by statement."""

import time

import records
from events import fill
from owners import Owners
from race import RUNS, WRITES, Model, Record
from sessions import CLAIM_LIMIT, PATIENCE, Failure
from steps import CALLS, NEVER_WAIT, gid_of, sql_of, verdict_of

# The record at the start: facts of the stored row and of the model.
STARTS = {
    'none': (None, None),
    'alive': ({'state': 'IN_PROGRESS', 'lease': 'alive'}, Record()),
    'over': ({'state': 'IN_PROGRESS', 'lease': 'over'}, Record(lease='over')),
    'over, called': ({'state': 'IN_PROGRESS', 'lease': 'over', 'call': 'once'}, Record(lease='over', call='once')),
    'expired': ({'state': 'COMPLETED', 'expired': True}, Record(state='COMPLETED', expired=True)),
    'unknown': ({'state': 'UNKNOWN', 'call': 'once'}, Record(state='UNKNOWN', call='once', lease='over')),
    'completed': ({'state': 'COMPLETED'}, Record(state='COMPLETED', answered_by='start', lease='over')),
}


class Actor:
    """A session inside one run."""

    def __init__(self, name, session, steps, attempt):
        self.name, self.session, self.steps, self.attempt = name, session, list(steps), attempt
        self.transaction = self.prepared = None
        self.waiting = None             # the step that waits for a row
        self.waited_for = None          # the record of that row
        self.single = False             # no transaction block is open


class Run:
    """One order of the statements of a history."""

    def __init__(self, driver, history, key):
        stored, facts = STARTS[history.start]
        self.driver, self.history = driver, history
        self.record = records.Record(key, {}, stored)
        self.log = []
        if stored is not None:
            rows = driver.monitor.execute(self.record.insert('clock_timestamp()') + ' RETURNING attempt')
            attempt = int(rows[0]['attempt'])
            facts = Record(**{**vars(facts), 'attempt': attempt})
        else:
            attempt = int(driver.monitor.execute("SELECT nextval('idem.attempt') AS attempt")[0]['attempt'])
        self.model = Model(facts)
        self.owners = Owners(attempt, history.start == 'alive')
        self.actors = [Actor('ABC'[number], driver.sessions[number], steps, attempt if number == 0 and stored else 0)
                       for number, steps in enumerate(history.sessions)]
        self.waiting = []

    def enabled(self):
        return [number for number, actor in enumerate(self.actors) if actor.steps and not actor.waiting]

    def step(self, number):
        """Sends the next step of a session, and takes its answer unless it waits."""
        actor = self.actors[number]
        step = actor.steps.pop(0)
        *first, last = step.split(' + ')
        sql = '; '.join(sql_of(part, self.record, actor.name, actor.attempt) for part in (*first, last))
        self.log.append(f'{actor.name}: {sql}')
        start = time.monotonic()
        actor.session.send(sql)
        failed = next(filter(None, (self.control(part, actor) for part in first)), None)
        if last not in CALLS:
            self.finish_control(actor, last, failed)
            return
        if actor.transaction is None:
            actor.transaction, actor.single = self.model.begin('RC'), True
        if not failed and self.model.blocked(actor.transaction, CALLS[last][0]):
            if self.is_waiting(actor, last):
                actor.waiting, actor.waited_for = last, self.model.seen(actor.transaction)
                self.waiting.append(actor)
                self.log.append('   waits')
                return
        self.finish_call(actor, last, failed)
        if last in NEVER_WAIT:
            self.driver.took(time.monotonic() - start)

    # Statements around calls

    def control(self, part, actor):
        """Brings about in the model what opens or goes back; gives the error it must raise."""
        word = part.split()[0]
        if word in ('begin', 'snap'):
            actor.transaction = self.model.begin(part.split()[1])
        elif actor.transaction.failed and part == 'savepoint':
            return '25P02'
        elif part == 'savepoint':
            self.model.set_savepoint(actor.transaction)
            self.owners.savepoint(actor.transaction)
        elif part == 'rollback to' and actor.transaction.savepoint is None:
            self.fail(actor.transaction)
            return '3B001'
        elif part == 'rollback to':
            self.model.rollback_to(actor.transaction)
            self.owners.rollback_to(actor.transaction)
        return None

    def finish_control(self, actor, part, failed):
        answer = self.wait_for(actor)
        transaction = actor.transaction
        allowed = {'done'}
        if part in ('commit', 'prepare') and not transaction.failed:
            allowed = self.model.may_commit(transaction)
        elif part in ('commit prepared', 'rollback prepared') and actor.prepared is None:
            allowed = {'42704'}
        elif part in ('savepoint', 'rollback to') or part.split()[0] in ('begin', 'snap'):
            failed = failed or self.control(part, actor)
        self.check(part, {failed} if failed else allowed, answer.error or 'done')
        if part == 'rollback to':
            self.wake()
        elif part in ('commit', 'rollback'):
            self.end(transaction, part == 'commit' and not answer.error and not transaction.failed)
            actor.transaction = None
        elif part == 'prepare':
            if answer.error or transaction.failed:
                self.end(transaction, False)
            else:
                actor.prepared = transaction
            actor.transaction = None
        elif part in ('commit prepared', 'rollback prepared') and actor.prepared is not None:
            self.end(actor.prepared, part == 'commit prepared')
            actor.prepared = None

    def end(self, transaction, commit):
        self.model.end(transaction, commit)
        self.owners.end(transaction, commit)
        self.wake()

    def fail(self, transaction):
        self.model.fail(transaction)
        self.owners.rollback_to(transaction)

    # Calls

    def finish_call(self, actor, part, failed=False):
        """Takes the answer to a call, and compares it with the model's."""
        event, _, timeout = CALLS[part]
        answer = self.wait_for(actor, part)
        verdict = verdict_of(part, answer)
        transaction = actor.transaction
        allowed = {failed} if failed else self.model.allowed(
            transaction, event, actor.name, actor.attempt, timeout, actor.waited_for)
        actor.waited_for = None
        self.check(part, allowed, verdict)
        if verdict == '40001' and not answer.hint:
            raise Failure(f'{part}: {verdict} without a hint')
        self.driver.counted[verdict] += 1
        if answer.error:
            self.fail(transaction)
        else:
            if verdict in RUNS:
                actor.attempt = int(answer.rows[0]['attempt'])
            self.owners.note(transaction, verdict, actor.attempt)
            self.model.apply(transaction, event, actor.name, verdict, actor.attempt, timeout)
        if actor.single:
            actor.transaction, actor.single = None, False
            self.end(transaction, not answer.error)
        elif answer.error:
            self.wake()

    def is_waiting(self, actor, part):
        """Whether the call waits for another's transaction, as the model has it; it
        may also say at once what needs no change, or that its snapshot is too old."""
        event, _, timeout = CALLS[part]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if (answer := actor.session.answer(0.002)) is not None:
                seen = self.model.says(self.model.seen(actor.transaction), actor.transaction, event, actor.name,
                                       actor.attempt, timeout)
                if seen in WRITES and answer.error != '40001':
                    raise Failure(f'{part} did not wait for the row')
                return False
            if self.driver.blocked(actor.session):
                return True
        raise Failure(f'{part} neither answers nor waits for another')

    def wake(self):
        """Takes the answers of those whose row is free now, in the order in which
        they began to wait."""
        for actor in list(self.waiting):
            if actor not in self.waiting or self.model.blocked(actor.transaction, CALLS[actor.waiting][0]):
                continue
            part, actor.waiting = actor.waiting, None
            self.waiting.remove(actor)
            self.log.append(f'   {actor.name} goes on')
            self.finish_call(actor, part)

    def wait_for(self, actor, part=None):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = actor.session.answer(CLAIM_LIMIT)
            if answer is not None:
                return answer
            if self.driver.blocked(actor.session):
                raise Failure(f'{part or "the statement"} waits for another transaction')
        raise Failure(f'no answer to {part or "a statement"}')

    def check(self, part, allowed, verdict):
        self.log.append(f'   {verdict}')
        if verdict not in allowed:
            raise Failure(f'{part}: {verdict} instead of {" or ".join(sorted(allowed))}')

    # The end

    def take_row(self):
        """The record, which is gone then."""
        return self.driver.monitor.execute(fill(
            'DELETE FROM idem.idempotency WHERE (principal_id, idempotency_key) = ($where) RETURNING '
            'state, attempt, yielded, call_started_at IS NOT NULL AS called, verdict, '
            "CASE WHEN lease_expires_at > clock_timestamp() THEN 'alive' ELSE 'over' END AS lease, "
            "encode(response_body, 'escape') AS body", self.record))

    def check_row(self):
        rows = self.take_row()
        wanted = self.model.committed
        if wanted is None or not rows:
            if rows or wanted is not None:
                raise Failure(f'at the end there is {rows or "no row"} instead of {wanted or "none"}')
            return
        seen = {
            'state': wanted.state, 'attempt': str(wanted.attempt), 'yielded': 'ft'[wanted.yielded],
            'called': 'ft'[wanted.call != 'none'], 'verdict': wanted.verdict,
        }
        if wanted.state == 'IN_PROGRESS':
            seen['lease'] = wanted.lease
        if wanted.answered_by in ('A', 'B', 'C') and wanted.verdict is None:
            seen['body'] = f'by {wanted.attempt}'
        for column, value in seen.items():
            if rows[0][column] != value:
                raise Failure(f'at the end {column} is {rows[0][column]} instead of {value}')

    def clean(self):
        """Whatever happened: nothing is left of it."""
        for actor in self.actors:
            actor.session.cancel()
        for actor in self.actors:
            actor.session.leave()
        for actor in self.actors:
            gid = gid_of(self.record, actor.name)
            if self.driver.monitor.execute(f"SELECT 1 FROM pg_prepared_xacts WHERE gid = '{gid}'"):
                self.driver.monitor.execute(f"ROLLBACK PREPARED '{gid}'")
        self.take_row()
