"""What the story shows to its reader: requests, answers, tables, the topic."""

import terminal


def show_request(learner, key, offering, amount_cents, note=''):
    named = '' if key is None else f'Idempotency-Key: {key}  '
    terminal.request(learner.name, f'POST /payments  {named}{offering}, {amount_cents / 100:.2f} EUR  {note}')


def show_answer(answer):
    terminal.answer(answer.status, answer.reason, answer.told(), answer.body.decode())


def short(identifier):
    """The end of a UUID: version 7 ones of one minute begin alike."""
    return '…' + str(identifier)[-8:]


def show_record(cast, key):
    record, = cast.cluster.query('payments', """
        SELECT *, greatest(0, extract(epoch FROM lease_expires_at - clock_timestamp())) AS lease_left
        FROM idem.idempotency WHERE idempotency_key = %s""", [key])
    terminal.table('idem.idempotency', 'who owns the work; the answer, once there is one',
                   ['principal', 'key', 'state', 'tries', 'answer', 'lease'],
                   [(record.principal_id, key, record.state, record.tries, record.response_status,
                     f'{record.lease_left:.1f} s left' if record.state == 'IN_PROGRESS' else '')])
    return record


def show_payments(cast):
    rows = cast.cluster.query('payments', 'SELECT * FROM payments.payment ORDER BY payment_id')
    terminal.table('payments.payment', 'what money was taken for',
                   ['payment', 'learner', 'offering', 'cents', 'state', 'acquirer_ref'],
                   [(short(row.payment_id), row.principal_id, row.offering_id, row.amount_cents,
                     row.state, row.acquirer_ref) for row in rows],
                   ['yellow' if row.state in ('PENDING', 'UNKNOWN') else None for row in rows])


def payment_of(cast, key):
    """The payment's id, which is also the key towards the acquirer; None before there is one."""
    rows = cast.cluster.query('payments', """
        SELECT payment_id FROM payments.payment WHERE idempotency_key = %s""", [key])
    return str(rows[0].payment_id) if rows else None


def acquirer_calls(cast, key):
    return cast.acquirer.calls_with(payment_of(cast, key))


def show_acquirer(cast, key):
    payment, calls = payment_of(cast, key), acquirer_calls(cast, key)
    terminal.table('the acquirer', 'what it was asked for this payment, and what it did',
                   ['call', 'key', 'its answer', 'money taken'],
                   [(number, short(payment), call['status'], money(call))
                    for number, call in enumerate(calls, 1)])
    return calls


def money(call):
    if call['repeated']:
        return 'no, known key'
    return 'yes' if call['status'] == 'approved' else 'no'


def show_unresolved(cast):
    rows = cast.cluster.query('payments', 'SELECT * FROM idem.unresolved')
    terminal.table('idem.unresolved', 'what nobody can know, and what was left behind',
                   ['principal', 'key', 'state', 'age', 'payment', 'why'],
                   [(row.principal_id, row.idempotency_key, row.state, f'{row.age.total_seconds():.1f} s',
                     short(row.resource_id), row.unknown_reason) for row in rows],
                   ['yellow'] * len(rows))
    return rows


def show_resolutions(cast):
    rows = cast.cluster.query('payments', 'SELECT * FROM idem.resolution ORDER BY resolution_id')
    terminal.table('idem.resolution', 'what operators decided, and how they knew',
                   ['principal', 'key', 'verdict', 'by', 'evidence'],
                   [(row.principal_id, row.idempotency_key, row.verdict, row.resolved_by,
                     row.evidence['note']) for row in rows])


def show_outbox(cast):
    rows = cast.cluster.query('payments', 'SELECT * FROM idem.outbox ORDER BY seq')
    terminal.table('idem.outbox', 'events, written in the transaction of the payment',
                   ['seq', 'event id', 'payment', 'published', 'partition', 'offset'],
                   [(row.seq, short(row.event_id), short(row.aggregate_id),
                     'yes' if row.published_at else 'not marked',
                     row.kafka_partition, row.kafka_offset) for row in rows],
                   [None if row.published_at else 'yellow' for row in rows])


def event_id(record):
    return dict(record.headers())['ce_id'].decode()


def show_topic(cast):
    """Returns the event ids in the topic, with their repeats."""
    records = cast.topic.records()
    ids = [event_id(record) for record in records]
    terminal.table('topic payments.payment-authorized', 'what a Kafka consumer reads',
                   ['partition', 'offset', 'event id', 'payment', ''],
                   [(record.partition(), record.offset(), short(identifier), short(record.key().decode()),
                     'the same event' if ids.count(identifier) > 1 else '')
                    for record, identifier in zip(records, ids)],
                   ['yellow' if ids.count(identifier) > 1 else None for identifier in ids])
    return ids


def show_enrollment_log(cast, identifier):
    terminal.line()
    terminal.note('What enrollment said about it:')
    for line in cast.enrollment.log.read_text().splitlines():
        if identifier in line and 'from' in line:
            terminal.note(line)


def show_seats(cast):
    rows = cast.cluster.query('enrollment', 'SELECT * FROM enrollment.seat ORDER BY payment_id')
    terminal.table('enrollment.seat', 'in another database, which hears of payments by event only',
                   ['offering', 'learner', 'payment'],
                   [(row.offering_id, row.principal_id, short(row.payment_id)) for row in rows])
