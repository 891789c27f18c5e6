"""What becomes of a payment once it is known whether the money was taken.

The live path (payments) and an operator (resolve) share it, so that a payment
which was settled by hand is like any other.
"""

import json

from psycopg.types.json import Jsonb

SETTLED = 'UPDATE payments.payment SET state = %s, acquirer_ref = %s WHERE payment_id = %s'

# Events of one payment keep their order (key); this one is stated once (once_key).
AUTHORIZED = """
SELECT outbox_emit('payments.payment-authorized', key => %(id)s,
    event_type => 'payments.payment-authorized', payload => %(payload)s,
    once_key => 'payment-authorized:' || %(id)s,
    aggregate_type => 'payment', aggregate_id => %(id)s)
"""


def answer(payment, approved):
    """Status and body for the client; payment has the columns of payments.payment."""
    body = {'payment_id': str(payment['payment_id']), 'state': state(approved),
            'offering_id': payment['offering_id'],
            'amount_cents': payment['amount_cents'], 'currency': payment['currency']}
    return 201 if approved else 402, json.dumps(body).encode()


def settle(db, payment, approved, acquirer_ref):
    """Payment and event, in the transaction that also keeps the answer."""
    payment_id = str(payment['payment_id'])
    db.execute(SETTLED, (state(approved), acquirer_ref, payment_id))
    if approved:
        event = {'payment_id': payment_id, 'principal_id': payment['principal_id'],
                 'offering_id': payment['offering_id'],
                 'amount_cents': payment['amount_cents'], 'currency': payment['currency']}
        db.execute(AUTHORIZED, {'id': payment_id, 'payload': Jsonb(event)})


def state(approved):
    return 'AUTHORIZED' if approved else 'DECLINED'
