"""Makes the relay stand between Kafka's acknowledgement and its mark."""

from clients import Background
from parts import wait_for


class OutboxLock:
    """Keeps the relay from marking, but not from reading and sending.

    A SHARE lock on the leaf of today lets others read it and not write to it.
    But the row has to come in first, and the lock must be there before the relay
    gets to its mark.  So two sessions use the lock's queue: the first holds the
    lock, the transaction with the row queues for the leaf, and the second session
    queues behind that.  When the first lets go, the row goes in, and its commit
    hands the lock to the second.
    """

    def __init__(self, cluster):
        self.cluster = cluster

    def __enter__(self):
        # The leaf of tomorrow as well: midnight may come at any time.
        today = self.cluster.query('payments', 'SELECT idem.outbox_slot() AS slot')[0].slot
        self.leaves = [f'idem.outbox_{slot:02}' for slot in (today, (today + 1) % 64)]
        self.first = self.cluster.connect('payments')
        self.second = self.cluster.connect('payments')
        self.lock(self.first)
        return self

    def lock(self, session):
        session.execute(f'BEGIN; LOCK TABLE ONLY {", ONLY ".join(self.leaves)} IN SHARE MODE')

    def let_one_transaction_pass(self):
        wait_for('the event to queue for the outbox', lambda: self.waiting('RowExclusiveLock'))
        queued = Background(self.lock, self.second)
        wait_for('the lock to queue behind the event', lambda: self.waiting('ShareLock'))
        self.first.execute('COMMIT')
        queued.result()

    def waiting(self, mode):
        return self.cluster.query('payments', """
            SELECT pid, backend_type FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE relation = ANY (%s::regclass[]) AND mode = %s AND NOT granted""",
                                  [self.leaves, mode])

    def waiting_relay(self):
        """The relay's process, once it has the acknowledgement and wants to mark."""
        relays = [row.pid for row in self.waiting('RowExclusiveLock') if row.backend_type == 'idem relay']
        return relays[0] if relays else None

    def __exit__(self, *_):
        # A crash of the server may have ended these sessions already.
        self.first.close()
        self.second.close()
