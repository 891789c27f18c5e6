"""The two sides that the story speaks HTTP with: payments and the acquirer."""

import http.client
import json
import threading
from typing import NamedTuple

# Headers that steer a client; the others would only be noise in the story.
TOLD = ('retry-after', 'idempotent-replayed')


class Answer(NamedTuple):
    status: int
    reason: str
    headers: list
    body: bytes

    def told(self):
        return [(name, value) for name, value in self.headers if name.lower() in TOLD]

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    def code(self):
        """What a program branches on: the code of a problem document."""
        return json.loads(self.body).get('code')

    def stored(self):
        """What the record holds of the answer: the same in every replay."""
        passing = ('date', 'server', 'connection', 'idempotent-replayed')
        return (self.status, [(name.lower(), value) for name, value in self.headers
                              if name.lower() not in passing], self.body)


def call(address, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(address.removeprefix('http://'), timeout=60)
    try:
        connection.request(method, path, json.dumps(body).encode() if body is not None else None,
                           {'Content-Type': 'application/json', **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, response.reason, response.getheaders(), response.read())
    finally:
        connection.close()


class Learner:
    """One who pays: POST /payments with credentials and a key."""

    def __init__(self, payments, name):
        self.payments, self.name = payments, name

    def pay(self, key, offering, amount_cents):
        """One request; key is what the Idempotency-Key header says, None: there is none."""
        named = {} if key is None else {'Idempotency-Key': key}
        return call(self.payments, 'POST', '/payments',
                    {'offering_id': offering, 'amount_cents': amount_cents, 'currency': 'EUR',
                     'payment_method_token': f'card-of-{self.name}'},
                    {'Authorization': f'Bearer token-of-{self.name}', **named})


class AcquirerControl:
    def __init__(self, address):
        self.address = address

    def tell(self, **settings):
        answer = call(self.address, 'PUT', '/control', settings)
        if answer.status != 200:
            raise RuntimeError(f'the acquirer refused {settings}: {answer.body.decode()}')

    def counts(self):
        return json.loads(call(self.address, 'GET', '/control').body)

    def status(self, key):
        """What became of a key, as an operator asks."""
        return json.loads(call(self.address, 'GET', f'/captures/{key}').body)

    def calls_with(self, key):
        return [entry for entry in self.counts()['calls_by_key'] if entry['key'] == key]


class Background(threading.Thread):
    """Work that goes on while the story looks; result() waits for it."""

    def __init__(self, work, *parameters):
        super().__init__(daemon=True)
        self.work, self.parameters, self.value, self.error = work, parameters, None, None
        self.start()

    def run(self):
        try:
            self.value = self.work(*self.parameters)
        except Exception as error:
            self.error = error

    def is_done(self):
        return not self.is_alive()

    def result(self, seconds=60):
        self.join(seconds)
        if self.is_alive():
            raise TimeoutError(f'{self.work.__name__} did not end within {seconds} s')
        if self.error:
            raise self.error
        return self.value
