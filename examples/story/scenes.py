"""The scenes of S1, "pay for a course, get one seat", and the ledger at the end.

What a scene claims, it looks up: in the tables, at the acquirer, in the topic.
"""

import os
import shlex
import signal
import threading

import psycopg

from clients import Background
from exhibits import (acquirer_calls, event_id, payment_of, show_acquirer, show_answer,
                      show_enrollment_log, show_outbox, show_payments, show_record, show_request,
                      show_resolutions, show_seats, show_topic, show_unresolved)
from outbox_lock import OutboxLock
from parts import Failed, wait_for
import terminal

# What the ledger must find after all scenes, and why.
EXPECTED = [
    ('requests', 18, 'a double click, replays, misuses, retries'),
    ('acquirer calls', 9, 'one for each payment, and two retries'),
    ('captures', 6, 'both retries met a key that was known'),
    ('payments AUTHORIZED', 6, 'one for each thing that was paid for'),
    ('payments DECLINED', 1, 'an answer like any other'),
    ('payments PENDING or UNKNOWN', 0, 'an operator settled the one there was'),
    ('records unresolved', 0, 'the same'),
    ('events in the topic', 7, 'one for each, one more from the new relay'),
    ('distinct event ids', 6, 'one for each AUTHORIZED payment'),
    ('seats', 6, 'one for each AUTHORIZED payment'),
]


def expect(what, found, wanted):
    if found != wanted:
        raise Failed(f'not so: "{what}". Expected {wanted!r}, found {found!r}.')
    terminal.check(what)


def count(cast, database, rows):
    return cast.cluster.query(database, f'SELECT count(*) FROM {rows}')[0].count


def wait_until_enrolled(cast):
    """Every event of the outbox is published and marked, and applied."""
    wait_for('the relay to publish and mark every event', lambda: count(
        cast, 'payments', 'idem.outbox WHERE published_at IS NULL') == 0)
    wait_for('enrollment to apply what is in the topic', lambda: cast.topic.lag(cast.group) == 0)


def run_resolve(cast, *arguments):
    """The operator's command, as typed; returns its status."""
    terminal.line()
    terminal.note(f'$ resolve {shlex.join(arguments)}')
    status, said = cast.resolve(*arguments)
    for text in said.splitlines():
        terminal.note(text)
    return status


def first_request(cast):
    """The first request"""
    asha = cast.learner('asha')
    terminal.say("""Asha buys a course. Transaction one claims her key and writes the payment as PENDING.
        The acquirer is called while no transaction is open. Transaction two keeps the answer, settles
        the payment and writes the event. The relay sends the event to Kafka, and enrollment gives
        the seat.""")
    show_request(asha, 'asha-1', 'databases', 9900)
    answer = asha.pay('asha-1', 'databases', 9900)
    show_answer(answer)
    wait_until_enrolled(cast)
    show_record(cast, 'asha-1')
    show_payments(cast)
    show_outbox(cast)
    show_topic(cast)
    show_seats(cast)
    terminal.line()
    expect('she was answered 201', answer.status, 201)
    expect('one payment is AUTHORIZED',
           count(cast, 'payments', "payments.payment WHERE state = 'AUTHORIZED'"), 1)
    expect('one seat was given', count(cast, 'enrollment', 'enrollment.seat'), 1)
    cast.first_answer = answer


def double_click(cast):
    """A double click"""
    bela = cast.learner('bela')
    terminal.say("""Bela's finger is quick: two requests with one key, at the same time. One of them
        claims the key. The other does not wait: it hears at once that the first still runs. (The
        acquirer takes its time here, until one of them was answered.)""")
    cast.acquirer.tell(reply='hold')
    together = threading.Barrier(2)

    def click():
        together.wait()
        return bela.pay('bela-1', 'databases', 9900)
    clicks = [Background(click), Background(click)]
    wait_for('one of two requests to be turned away', lambda: any(click.is_done() for click in clicks))
    cast.acquirer.tell(reply='at once')
    answers = sorted((click.result() for click in clicks), key=lambda answer: -answer.status)
    for number, answer in enumerate(answers, 1):
        show_request(bela, 'bela-1', 'databases', 9900, f'({number} of 2)')
        show_answer(answer)
    wait_until_enrolled(cast)
    show_record(cast, 'bela-1')
    calls = show_acquirer(cast, 'bela-1')
    terminal.line()
    expect('one was answered 409, the other 201', [answer.status for answer in answers], [409, 201])
    expect('the 409 says operation_in_progress', answers[0].code(), 'operation_in_progress')
    expect('and after how many seconds to ask again', int(answers[0].header('retry-after') or 0) >= 1, True)
    expect('the acquirer was called once', len(calls), 1)


def replay(cast):
    """The answer got lost"""
    asha = cast.learner('asha')
    terminal.say("""The 201 of the first scene never reached Asha's phone, so it sends the request again,
        with the same key. It gets the stored answer, and the acquirer hears nothing.""")
    show_request(asha, 'asha-1', 'databases', 9900, '(again)')
    answer = asha.pay('asha-1', 'databases', 9900)
    show_answer(answer)
    terminal.line()
    expect('status, headers and body are those of the first answer, byte for byte',
           answer.stored(), cast.first_answer.stored())
    expect('it says that it is a replay', answer.header('idempotent-replayed'), 'true')
    expect('the acquirer was not called again', len(acquirer_calls(cast, 'asha-1')), 1)


def other_amount(cast):
    """The same key for something else"""
    asha = cast.learner('asha')
    terminal.say("""A bug in an app: it uses the key of the first scene for another amount. That is
        refused, whatever became of the first request, and the refusal tells nothing of it.""")
    show_request(asha, 'asha-1', 'databases', 4900)
    answer = asha.pay('asha-1', 'databases', 4900)
    show_answer(answer)
    terminal.line()
    expect('it was answered 409', answer.status, 409)
    expect('the 409 says idempotency_key_reused', answer.code(), 'idempotency_key_reused')
    expect('the acquirer was not called again', len(acquirer_calls(cast, 'asha-1')), 1)
    terminal.line()
    terminal.say('Another app sends no key at all, and a third one sends half a string.')
    codes = []
    for key in (None, '"asha'):
        show_request(asha, key, 'databases', 4900)
        answer = asha.pay(key, 'databases', 4900)
        show_answer(answer)
        codes.append((answer.status, answer.code()))
    terminal.line()
    expect('both were answered 400, and told why', codes,
           [(400, 'idempotency_key_missing'), (400, 'idempotency_key_malformed')])
    terminal.line()
    terminal.say("""The draft of the header wants its key in double quotes, which many leave out. It is the same
        key with and without.""")
    show_request(asha, '"asha-1"', 'databases', 9900)
    answer = asha.pay('"asha-1"', 'databases', 9900)
    show_answer(answer)
    terminal.line()
    expect('it was answered as before', answer.stored(), cast.first_answer.stored())


def declined(cast):
    """A decline"""
    bela = cast.learner('bela')
    terminal.say("""Bela's card has no money left. A decline is an answer: it is kept and replayed like an
        approval. It writes no event.""")
    cast.acquirer.tell(decision='decline')
    show_request(bela, 'bela-2', 'streams', 12900)
    first = bela.pay('bela-2', 'streams', 12900)
    show_answer(first)
    cast.acquirer.tell(decision='approve')
    terminal.line()
    terminal.say("""The card is good again, and Bela's phone repeats the request. The same key gets the same
        answer; to try again, Bela needs a new one.""")
    show_request(bela, 'bela-2', 'streams', 12900, '(again)')
    again = bela.pay('bela-2', 'streams', 12900)
    show_answer(again)
    show_record(cast, 'bela-2')
    show_payments(cast)
    calls = show_acquirer(cast, 'bela-2')
    terminal.line()
    expect('both were answered 402', [first.status, again.status], [402, 402])
    expect('with the same headers and body, byte for byte', again.stored(), first.stored())
    expect('the second says that it is a replay', again.header('idempotent-replayed'), 'true')
    expect('the acquirer was called once', len(calls), 1)
    expect('no event', count(cast, 'payments', f"idem.outbox WHERE aggregate_id = '{payment_of(cast, 'bela-2')}'"), 0)


def timed_out(cast):
    """The acquirer takes the money and does not answer"""
    bela = cast.learner('bela')
    terminal.say("""Bela tries again with a new key. The acquirer takes the money, and its answer never
        comes. Nobody can call that paid or declined; but this acquirer honours keys, so the service
        ends its lease (idem_yield) and asks for another try.""")
    cast.acquirer.tell(reply='hang')
    show_request(bela, 'bela-3', 'streams', 12900)
    first = bela.pay('bela-3', 'streams', 12900)
    show_answer(first)
    cast.acquirer.tell(reply='at once')
    show_record(cast, 'bela-3')
    show_payments(cast)
    terminal.line()
    terminal.say("""The retry need not wait for a lease: it resumes at once, for the same payment, and asks
        the acquirer under the same key.""")
    show_request(bela, 'bela-3', 'streams', 12900, '(again)')
    answer = bela.pay('bela-3', 'streams', 12900)
    show_answer(answer)
    wait_until_enrolled(cast)
    record = show_record(cast, 'bela-3')
    calls = show_acquirer(cast, 'bela-3')
    show_seats(cast)
    terminal.line()
    expect('the first was answered 503', first.status, 503)
    expect('with the seconds to wait', first.header('retry-after'), '1')
    expect('the retry was answered 201', answer.status, 201)
    expect('two calls, and only the first took money', [call['repeated'] for call in calls], [False, True])
    expect('a lease that was given up is no failed try', record.tries, 0)
    expect('one seat for it', count(cast, 'enrollment', "enrollment.seat WHERE offering_id = 'streams'"), 1)


def unknown(cast):
    """The same with an acquirer that knows no keys"""
    terminal.say("""Dana pays through another instance of the service, with an acquirer that remembers no
        keys: to ask it twice can be to charge twice. It takes the money and does not answer. So the
        record becomes UNKNOWN (idem_mark_unknown), the payment too, and nobody runs it again.""")
    service = cast.payment_service('payments-without-keys', '--dedup-window', 0)
    dana = cast.dana = cast.learner('dana', service.first_line('http://'))
    cast.acquirer.tell(reply='hang', deduplicate=False)
    show_request(dana, 'dana-1', 'databases', 9900)
    first = dana.pay('dana-1', 'databases', 9900)
    show_answer(first)
    cast.acquirer.tell(reply='at once')
    terminal.line()
    terminal.say('Her phone asks again, with the same key, as it was told to.')
    show_request(dana, 'dana-1', 'databases', 9900, '(again)')
    again = dana.pay('dana-1', 'databases', 9900)
    show_answer(again)
    record = show_record(cast, 'dana-1')
    show_payments(cast)
    unresolved = show_unresolved(cast)
    calls = show_acquirer(cast, 'dana-1')
    payment = payment_of(cast, 'dana-1')
    terminal.line()
    expect('both were answered 202', [first.status, again.status], [202, 202])
    expect('the 202 says operation_uncertain', [first.code(), again.code()], ['operation_uncertain'] * 2)
    expect('and after how many seconds to ask again', int(again.header('retry-after') or 0) >= 1, True)
    expect('record and payment are UNKNOWN',
           (record.state, count(cast, 'payments', "payments.payment WHERE state = 'UNKNOWN'")), ('UNKNOWN', 1))
    expect('no event', count(cast, 'payments', f"idem.outbox WHERE aggregate_id = '{payment}'"), 0)
    expect('operators see it', [row.idempotency_key for row in unresolved], ['dana-1'])
    expect('the acquirer was called once', len(calls), 1)


def resolved(cast):
    """An operator finds out"""
    payment = payment_of(cast, 'dana-1')
    wait_for('the call to be over for good', lambda: count(cast, 'payments', """
        idem.unresolved WHERE call_deadline + current_setting('idem.call_grace')::interval <= clock_timestamp()"""))
    known = cast.acquirer.status(payment)
    terminal.say("""An operator asks the acquirer: the payment was approved. The verdict goes into the record
        with its evidence, and in the same transaction into the payment and the outbox, just as the
        service would have written it.""")
    status = run_resolve(cast)
    expect('the command lists it', status, 0)
    status = run_resolve(cast, 'dana', 'dana-1', 'completed', '--acquirer-ref', known['acquirer_ref'],
                         '--evidence', 'status query: approved')
    expect('and settles it', status, 0)
    wait_until_enrolled(cast)
    terminal.line()
    terminal.say("Dana's phone still asks, with the same key.")
    show_request(cast.dana, 'dana-1', 'databases', 9900, '(again)')
    answer = cast.dana.pay('dana-1', 'databases', 9900)
    show_answer(answer)
    show_resolutions(cast)
    show_payments(cast)
    show_outbox(cast)
    show_seats(cast)
    cast.acquirer.tell(deduplicate=True)
    terminal.line()
    terminal.say('A verdict is final; another one is refused.')
    contradicted = run_resolve(cast, 'dana', 'dana-1', 'not_applied', '--evidence', 'second thoughts')
    expect('it was refused', contradicted, 1)
    terminal.line()
    expect('she was answered 201', answer.status, 201)
    expect('the acquirer was not called again', len(acquirer_calls(cast, 'dana-1')), 1)
    expect('one event', count(cast, 'payments', f"idem.outbox WHERE aggregate_id = '{payment}'"), 1)
    expect('one seat for her', count(cast, 'enrollment', "enrollment.seat WHERE principal_id = 'dana'"), 1)
    expect('nothing is unresolved', count(cast, 'payments', 'idem.unresolved'), 0)


def server_killed(cast):
    """The database server dies after the money was taken"""
    chen = cast.learner('chen')
    terminal.say("""Chen pays. The acquirer approves, and before that is written down, the whole database
        server is killed with -9: the postmaster and every process of it.""")
    show_request(chen, 'chen-1', 'databases', 9900)
    cast.acquirer.tell(reply='hold')
    request = Background(chen.pay, 'chen-1', 'databases', 9900)
    wait_for('the acquirer to take the money', lambda: acquirer_calls(cast, 'chen-1'))
    show_acquirer(cast, 'chen-1')
    children = cast.cluster.kill()
    terminal.event(f'kill -9: the postmaster and its {children} processes')
    cast.acquirer.tell(reply='at once')
    answer = request.result()
    show_answer(answer)
    expect('without its database, the service can only ask for another try', answer.status, 503)

    cast.cluster.start()
    terminal.line()
    terminal.say("""The server is back. What transaction one had committed is there: who owns the work,
        and a payment that nobody can call paid or unpaid.""")
    show_record(cast, 'chen-1')
    show_payments(cast)
    wait_for('the lease of the dead attempt to be over', lambda: count(cast, 'payments', """
        idem.idempotency WHERE idempotency_key = 'chen-1' AND lease_expires_at <= clock_timestamp()"""))
    terminal.line()
    terminal.say("""The lease of the dead attempt is over, and Chen's phone tries again. The claim is
        RESUMED: a new attempt for the same payment. It asks the acquirer under the same key. The
        acquirer knows the key and takes no money.""")
    show_request(chen, 'chen-1', 'databases', 9900, '(again)')
    answer = chen.pay('chen-1', 'databases', 9900)
    show_answer(answer)
    wait_until_enrolled(cast)
    record = show_record(cast, 'chen-1')
    show_payments(cast)
    calls = show_acquirer(cast, 'chen-1')
    terminal.line()
    expect('he was answered 201', answer.status, 201)
    expect('one attempt before this one ended without an answer', record.tries, 1)
    expect('two calls, and only the first took money', [call['repeated'] for call in calls], [False, True])
    expect('one payment of his', count(cast, 'payments', "payments.payment WHERE principal_id = 'chen'"), 1)
    expect('one event', count(cast, 'payments', "idem.outbox WHERE payload->>'principal_id' = 'chen'"), 1)


def relay_killed(cast):
    """The relay dies between Kafka's acknowledgement and its mark"""
    asha = cast.learner('asha')
    terminal.say("""Asha buys another course. The relay sends the event, Kafka acknowledges it, and before
        the relay can mark it as published, the relay is killed with -9. (To make it stand exactly
        there, a lock on the outbox keeps the mark waiting.) PostgreSQL then restarts all of its
        processes.""")
    show_request(asha, 'asha-2', 'networks', 12900)
    with OutboxLock(cast.cluster) as lock:
        request = Background(asha.pay, 'asha-2', 'networks', 12900)
        lock.let_one_transaction_pass()
        answer = request.result()
        show_answer(answer)
        relay = wait_for('the relay to stand before its mark', lock.waiting_relay)
        wait_for('enrollment to apply the event', lambda: cast.topic.lag(cast.group) == 0)
        show_outbox(cast)
        ids = show_topic(cast)
        terminal.line()
        expect('she was answered 201', answer.status, 201)
        expect('her event is in Kafka, and applied',
               (len(ids), count(cast, 'enrollment', 'enrollment.seat')), (6, 6))
        expect('but not marked as published',
               count(cast, 'payments', 'idem.outbox WHERE published_at IS NULL'), 1)
        os.kill(relay, signal.SIGKILL)
        terminal.event(f'kill -9: the relay, process {relay}')
        wait_for('a new relay', lambda: another_relay(cast.cluster, relay))
    wait_until_enrolled(cast)
    terminal.line()
    terminal.say("""The new relay can't know what the dead one had sent. It sends the event again, under
        the same event id: twice is better than never. Enrollment finds the id in its inbox and does
        nothing.""")
    show_outbox(cast)
    ids = show_topic(cast)
    repeated = next((identifier for identifier in ids if ids.count(identifier) > 1), None)
    show_enrollment_log(cast, str(repeated))
    show_seats(cast)
    terminal.line()
    expect('seven records in the topic, six event ids', (len(ids), len(set(ids))), (7, 6))
    expect('one seat for it', count(cast, 'enrollment', "enrollment.seat WHERE offering_id = 'networks'"), 1)
    expect('and nobody is to be paid back', count(cast, 'enrollment', 'enrollment.refund'), 0)


def another_relay(cluster, old):
    try:
        pid = cluster.query('payments', 'SELECT pid FROM idem.relay_status')[0].pid
    except psycopg.OperationalError:  # the server is restarting its processes
        return None
    return pid if pid != old else None


SCENES = [first_request, double_click, replay, other_amount, declined, timed_out, unknown, resolved,
          server_killed, relay_killed]


def ledger(cast):
    """Counts everything where it is, and returns whether all of it is as expected."""
    acquirer = cast.acquirer.counts()
    ids = [event_id(record) for record in cast.topic.records()]
    found = [cast.requests(), acquirer['calls'], acquirer['captures'],
             count(cast, 'payments', "payments.payment WHERE state = 'AUTHORIZED'"),
             count(cast, 'payments', "payments.payment WHERE state = 'DECLINED'"),
             count(cast, 'payments', "payments.payment WHERE state IN ('PENDING', 'UNKNOWN')"),
             count(cast, 'payments', 'idem.unresolved'),
             len(ids), len(set(ids)), count(cast, 'enrollment', 'enrollment.seat')]
    right = [number == wanted for (_, wanted, _), number in zip(EXPECTED, found)]
    terminal.say("""Everything is counted where it is: requests in the log of payments, calls and captures
        at the acquirer, payments and seats in their tables, events in the topic.""")
    terminal.table('the ledger', '', ['', 'expected', 'found', '', ''],
                   [(what, wanted, number, '✓' if good else '✗', why)
                    for (what, wanted, why), number, good in zip(EXPECTED, found, right)],
                   ['green' if good else 'red' for good in right])
    return all(right)
