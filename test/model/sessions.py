"""Sessions that a single thread drives: a statement is sent, and its answer is
taken when it is there."""

import select
import time

from psycopg import pq

PATIENCE = 10                           # seconds until an answer counts as lost
CLAIM_LIMIT = 0.2                       # seconds that a claim may take


class Failure(Exception):
    """What must not be, in words."""


class Answer:
    """Rows of the last statement as text, and the SQLSTATE and hint of an error."""

    def __init__(self, results):
        self.error, self.hint, self.rows = None, None, []
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                self.error = result.error_field(pq.DiagnosticField.SQLSTATE).decode()
                self.hint = result.error_field(pq.DiagnosticField.MESSAGE_HINT)
                self.message = result.error_message.decode()
            elif result.status == pq.ExecStatus.TUPLES_OK:
                names = [result.fname(number).decode() for number in range(result.nfields)]
                self.rows = [dict(zip(names, (_text(result.get_value(row, column)) for column in range(result.nfields))))
                             for row in range(result.ntuples)]


def _text(value):
    return None if value is None else value.decode()


class Session:
    def __init__(self, conninfo, settings):
        self.connection = pq.PGconn.connect(conninfo.encode())
        if self.connection.status != pq.ConnStatus.OK:
            raise Failure(self.connection.error_message.decode())
        self.connection.nonblocking = 1
        self.pid = self.connection.backend_pid
        self.results = []
        for name, value in settings.items():
            self.execute(f"SET {name} = '{value}'")

    def send(self, sql):
        self.results = []
        self.connection.send_query(sql.encode())
        while self.connection.flush():
            pass

    def answer(self, seconds):
        """The answer to what was sent, or None when it takes longer than this."""
        deadline = time.monotonic() + seconds
        while True:
            while not self.connection.is_busy():
                result = self.connection.get_result()
                if result is None:
                    return Answer(self.results)
                self.results.append(result)
            left = deadline - time.monotonic()
            if not select.select([self.connection.socket], [], [], max(left, 0))[0] and left <= 0:
                return None
            self.connection.consume_input()

    def execute(self, sql):
        """Sends, and waits for an answer that is no error."""
        self.send(sql)
        answer = self.answer(PATIENCE)
        if answer is None or answer.error:
            raise Failure(f'{sql}: {answer.message if answer else "no answer"}')
        return answer.rows

    def cancel(self):
        """Ends what was sent and has no answer yet."""
        if self.connection.transaction_status == pq.TransactionStatus.ACTIVE:
            self.connection.get_cancel().cancel()

    def leave(self):
        """Ends what transaction there is."""
        if self.answer(PATIENCE) is None:
            raise SystemExit(f'session {self.pid} does not come back')
        if self.connection.transaction_status != pq.TransactionStatus.IDLE:
            self.execute('ROLLBACK')
