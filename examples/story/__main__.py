"""Tells scenario S1, "pay for a course, get one seat", on real parts.

Called by examples/demo, which builds and installs what this needs.
"""

import argparse
import signal
import sys
import time

from parts import TOPIC
from scenes import SCENES, ledger
from cast import Cast
import terminal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument('--folder', required=True, help='empty folder for everything that is made')
    parser.add_argument('--bin', required=True, help='folder of the PostgreSQL programs that have idem')
    parser.add_argument('--broker', help='the program examples/broker')
    parser.add_argument('--kafka-jars', help='folder of the jars of Apache Kafka, to use it instead')
    parser.add_argument('--brokers', help='a Kafka that is there already, to use it instead')
    parser.add_argument('--keep', action='store_true', help='leave everything running')
    return parser.parse_args()


def introduce(cast):
    versions = cast.cluster.query('payments', """
        SELECT split_part(current_setting('server_version'), ' ', 1) AS server,
               (SELECT extversion FROM pg_extension WHERE extname = 'idem') AS idem""")[0]
    terminal.title('Pay for a course, get one seat', """
        A learner double-clicks, an answer is lost, a server dies, a message comes twice. One charge,
        one event and one seat come out of it, every time.""")
    terminal.line()
    for name, about in [
            ('payments', f'the service on {cast.payments_address}, and its database'),
            ('acquirer', 'takes the money; it knows a key that it has seen'),
            ('enrollment', 'gives the seats: a Kafka consumer with a database of its own'),
            ('PostgreSQL', f'{versions.server} with idem {versions.idem}; its relay sends events to Kafka'),
            ('Kafka', f'{cast.broker.about}, on {cast.broker.address}')]:
        terminal.line(f'{terminal.INDENT}{terminal.paint("bold", name.ljust(12))}{about}')


def tell(cast):
    """The story; returns the exit status."""
    step = 'starting'
    try:
        cast.start()
        introduce(cast)
        for number, scene in enumerate(SCENES, 1):
            step = f'scene {number}, "{scene.__doc__}"'
            terminal.scene(number, scene.__doc__)
            scene(cast)
        step = 'the ledger'
        terminal.scene('=', 'What came out')
        if ledger(cast):
            return 0
        terminal.line()
        terminal.line(terminal.paint('red', 'The ledger is wrong.'))
    except Exception as error:
        terminal.failure(step, error)
    for name, lines in cast.log_tails():
        terminal.log_tail(name, lines)
    return 1


def explain_keeping(cast):
    terminal.line()
    terminal.say('Everything still runs, as you wished.')
    body = ('{"offering_id": "kafka", "amount_cents": 4900, "currency": "EUR", '
            '"payment_method_token": "card-of-asha"}')
    for what, command in [
            ('The payment side:', f"{cast.cluster.bin}/psql '{cast.cluster.dsn('payments')}'"),
            ('The enrollment side:', f"{cast.cluster.bin}/psql '{cast.cluster.dsn('enrollment')}'"),
            ('The topic:', f'kcat -C -e -b {cast.broker.address} -t {TOPIC}'),
            ('One more payment:', f"curl -i {cast.payments_address}/payments -d '{body}' "
                                  "-H 'Authorization: Bearer token-of-asha' -H 'Idempotency-Key: asha-3'"),
            ('What the acquirer did:', f'curl {cast.acquirer.address}/control'),
            ('Stop all of it, and remove it:', str(cast.write_stop_script()))]:
        terminal.line()
        terminal.line(terminal.INDENT + terminal.paint('bold', what))
        terminal.line(terminal.INDENT + '  ' + command)  # one line, so that it can be copied


def interrupt(*_):
    ignore_signals()
    raise KeyboardInterrupt


def ignore_signals():
    """A second Ctrl-C must not keep things from being stopped."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def main():
    options = parse_options()
    for number in SIGNALS:
        signal.signal(number, interrupt)
    started = time.monotonic()
    cast = Cast(options)
    keep = False
    try:
        status = tell(cast)
        if status == 0:
            terminal.line()
            terminal.line(terminal.paint('green', 'Every line of the ledger is right.')
                          + terminal.paint('dim', f'  Told in {time.monotonic() - started:.0f} s.'))
            if options.keep:
                explain_keeping(cast)
                keep = True
    except KeyboardInterrupt:
        terminal.line()
        terminal.line('Interrupted; stopping everything.')
        status = 130
    finally:
        ignore_signals()
        if not keep:
            cast.stop()
    return status


if __name__ == '__main__':
    sys.exit(main())
